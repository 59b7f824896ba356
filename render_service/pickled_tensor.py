"""What the pickle inside a file of ``torch.save`` says of its one tensor, without unpickling it.

The pickle is a program. Here it is interpreted with a few operations that build nothing but tuples
and the names of what they would call; nothing is imported, called or allocated by its word.
"""

import math
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from shared_protocol.errors import InvalidRequest

MAX_PROGRAM_BYTES: Final = 4096
"""``torch.save`` writes some 200 for a tensor."""

MAX_DIMENSIONS: Final = 8

_PROTOCOL: Final = 2

_TENSOR: Final = "torch._utils _rebuild_tensor_v2"
_PARAMETER: Final = "torch._utils _rebuild_parameter"
_HOOKS: Final = "collections OrderedDict"

STORAGES: Final = {
    "torch DoubleStorage": "float64",
    "torch FloatStorage": "float32",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
    "torch LongStorage": "int64",
    "torch IntStorage": "int32",
    "torch ShortStorage": "int16",
    "torch CharStorage": "int8",
    "torch ByteStorage": "uint8",
    "torch BoolStorage": "bool",
}
"""The names of storages with torch's names of their dtypes."""

_ACCEPTED: Final = frozenset({_TENSOR, _PARAMETER, _HOOKS, *STORAGES})

_REFUSED: Final = {
    "torch._utils _rebuild_sparse_tensor": "a sparse tensor; send `tensor.to_dense()`",
    "torch._utils _rebuild_sparse_csr_tensor": "a sparse tensor; send `tensor.to_dense()`",
    "torch._utils _rebuild_qtensor": "a quantized tensor; send `tensor.dequantize()`",
    "torch._utils _rebuild_nested_tensor": "a nested tensor; send its rows one by one",
    "torch._tensor _rebuild_from_type_v2": "a tensor of another class; send `tensor.data`",
    "torch._utils _rebuild_tensor_v3": "a tensor of a dtype that is sent as safetensors only",
    "torch ComplexFloatStorage": "complex numbers",
    "torch ComplexDoubleStorage": "complex numbers",
}


@dataclass(frozen=True)
class StoredTensor:
    """A dense tensor as a view of its storage, checked to lie inside it.

    Attributes:
        storage: key of the storage, which names its file in the archive.
        storage_length, offset, stride: in elements.
        negated: whether the values are those of the storage with the other sign.
    """

    dtype: str
    storage: str
    storage_length: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    negated: bool


@dataclass(frozen=True)
class _Name:
    text: str


@dataclass(frozen=True)
class _Call:
    function: object
    arguments: object


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    length: int


def stored_tensor(program: bytes) -> StoredTensor:
    """Read the program of a file that holds one dense tensor or parameter.

    Raises:
        InvalidRequest: for any other program.
    """
    if len(program) > MAX_PROGRAM_BYTES:
        raise InvalidRequest("it describes more than one plain tensor")
    try:
        value = _evaluate(program)
    except (IndexError, KeyError, TypeError, ValueError, UnicodeError) as error:
        raise InvalidRequest("its description of the tensor is broken") from error
    if isinstance(value, _Call) and value.function == _Name(_PARAMETER):
        value = _of_parameter(value.arguments)
    return _described(value)


def _evaluate(program: bytes) -> object:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[object, Any] = {}
    for operation, argument, _ in pickletools.genops(program):
        match operation.name:
            case "PROTO":
                if argument != _PROTOCOL:
                    raise InvalidRequest(f"its pickle is of another protocol than {_PROTOCOL}")
            case "GLOBAL":
                stack.append(_named(str(argument)))
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(operation.name == "NEWTRUE")
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                start = marks.pop()
                stack[start:] = [tuple(stack[start:])]
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                start = len(stack) - int(operation.name[-1])
                stack[start:] = [tuple(stack[start:])]
            case "EMPTY_DICT":
                stack.append(())
            case "SETITEM":
                value, key, pairs = stack.pop(), stack.pop(), stack.pop()
                stack.append((*pairs, (key, value)))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_Call(function, arguments))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "STOP":
                (result,) = stack
                return result
            case _:
                raise InvalidRequest("it holds something else than one plain tensor")
    raise InvalidRequest("its description of the tensor has no end")


def _named(name: str) -> _Name:
    if name in _REFUSED:
        raise InvalidRequest(f"it holds {_REFUSED[name]}")
    if name not in _ACCEPTED:
        raise InvalidRequest("it holds something else than one plain tensor")
    return _Name(name)


def _storage(reference: object) -> _Storage:
    match reference:
        # Where the storage was, on a GPU or not, is all the same.
        case ("storage", _Name(kind), str(key), str(), int(length)) if kind in STORAGES:
            if _is_count(length):
                return _Storage(STORAGES[kind], key, length)
    raise InvalidRequest("its description of the tensor is broken")


def _of_parameter(arguments: object) -> object:
    match arguments:
        case (value, bool(), _Call(_Name(name), ())) if name == _HOOKS:
            return value
    raise InvalidRequest("its description of the parameter is broken")


def _described(value: object) -> StoredTensor:
    match value:
        case _Call(
            _Name(name),
            (
                _Storage() as storage,
                int(offset),
                tuple(size),
                tuple(stride),
                bool(),
                _Call(_Name(hooks), ()),
                *rest,
            ),
        ) if (name, hooks) == (_TENSOR, _HOOKS):
            tensor = StoredTensor(
                storage.dtype, storage.key, storage.length, offset, size, stride, _negated(rest)
            )
            _check_inside(tensor)
            return tensor
    raise InvalidRequest("it holds something else than one plain tensor")


def _negated(metadata: list[object]) -> bool:
    match metadata:
        case [] | [()]:
            return False
        case [(("neg", bool(negated)),)]:
            return negated
    raise InvalidRequest("its description of the tensor is broken")


def _check_inside(tensor: StoredTensor) -> None:
    counts = (tensor.offset, *tensor.size, *tensor.stride)
    if not all(map(_is_count, counts)) or len(tensor.size) != len(tensor.stride):
        raise InvalidRequest("its description of the tensor is broken")
    if len(tensor.size) > MAX_DIMENSIONS:
        raise InvalidRequest(f"its tensor has more than {MAX_DIMENSIONS} dimensions")
    if math.prod(tensor.size) and tensor.offset + sum(_reach(tensor)) >= tensor.storage_length:
        raise InvalidRequest("its tensor reaches beyond what is stored")


def _reach(tensor: StoredTensor) -> Iterator[int]:
    return ((size - 1) * stride for size, stride in zip(tensor.size, tensor.stride, strict=True))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
