"""Tensors as the wire names them: a dtype of a closed list, a shape and raw bytes."""

import math
from typing import Any, Final

from shared_protocol.errors import InvalidRequest

DTYPE_SIZES: Final[dict[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""torch's name of each dtype that may cross, and its size in bytes."""

MAX_DIMENSIONS: Final = 16

MAX_ELEMENTS: Final = 2**63 - 1
"""torch counts elements and strides in int64, those of an empty tensor too."""

Buffer = bytes | bytearray | memoryview


class TensorRef:
    """A dense, C-contiguous tensor whose bytes lie in a buffer of somebody else.

    Nothing is copied: the buffer must outlive the reference and stay unchanged.

    Attributes:
        dtype: a key of `DTYPE_SIZES`.
        shape: the dimensions, possibly none (a scalar) or with zeros (empty).
        data: the bytes, little-endian, ``nbytes`` of them.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: Buffer) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorRef):
            return NotImplemented
        return (self.dtype, self.shape) == (other.dtype, other.shape) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TensorRef({self.dtype}, {list(self.shape)}, {self.nbytes} bytes)"


def checked_tensor(dtype: Any, shape: Any, data: Any, *, param: str) -> TensorRef:
    """Build a `TensorRef` of values that a stranger sent.

    Raises:
        InvalidRequest: for a dtype outside the closed list, a shape that is not a list of
            non-negative integers, or bytes that do not fill the shape exactly.
    """
    if not isinstance(dtype, str) or dtype not in DTYPE_SIZES:
        named = repr(dtype) if isinstance(dtype, str) else f"of type {type(dtype).__name__}"
        raise InvalidRequest(
            f"{param}: dtype {named} is not one of {', '.join(DTYPE_SIZES)}", param=param
        )
    if not isinstance(shape, list | tuple) or not all(
        type(dimension) is int and dimension >= 0 for dimension in shape
    ):
        raise InvalidRequest(f"{param}: shape must be a list of non-negative integers", param=param)
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(
            f"{param}: {len(shape)} dimensions, at most {MAX_DIMENSIONS} are allowed", param=param
        )
    if math.prod(dimension or 1 for dimension in shape) > MAX_ELEMENTS:
        raise InvalidRequest(f"{param}: too large a shape: {list(shape)}", param=param)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidRequest(f"{param}: tensor data must be raw bytes", param=param)
    expected = math.prod(shape) * DTYPE_SIZES[dtype]
    if len(data) != expected:
        raise InvalidRequest(
            f"{param}: {dtype}{list(shape)} takes {expected} bytes, got {len(data)}", param=param
        )
    if dtype == "bool" and bytes(data).strip(b"\0\1"):
        raise InvalidRequest(f"{param}: the bytes of a bool tensor are 0 or 1", param=param)
    return TensorRef(dtype, tuple(shape), data)
