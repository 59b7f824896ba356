"""The binary form of a request: the safetensors container.

An 8-byte little-endian length, a JSON header, and the raw bytes of the tensors. The request's
JSON rides in the header's ``__metadata__.request``, with a tensor's name in place of the tensor;
token ids and the ``is_embed`` masks are tensors too. Neither framing nor reading copies a tensor:
those of a decoded request lie in the buffer it was decoded from.
"""

import struct
import sys
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from shared_protocol.errors import InvalidRequest
from shared_protocol.item_codec import pack_item, unpack_item
from shared_protocol.items import MultiModalItem
from shared_protocol.json_codec import parse_request
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest, check_request
from shared_protocol.tensors import DTYPE_SIZES, Buffer, TensorRef, checked_tensor

BINARY_CONTENT_TYPE: Final = "application/vnd.tandem.generate+safetensors"

SAFETENSORS_DTYPES: Final[dict[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""torch's dtype names to safetensors' own."""

_TORCH_DTYPES: Final = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items()}

_ALIGNMENT: Final = 8
"""Tensors begin at multiples of this, so that any dtype can be viewed where it lies."""

_TOKEN_IDS: Final = "token_ids"
_ENCODER_TOKEN_IDS: Final = "encoder_token_ids"


def encode_binary(request: GenerateRequest) -> bytes:
    return b"".join(encode_parts(request))


def encode_parts(request: GenerateRequest) -> list[Buffer]:
    """Encode `request` without copying its tensors: the parts of a body, one after the other."""
    tensors: dict[str, TensorRef] = {}
    names: dict[int, str] = {}
    for name, tensor in _named_tensors(request):
        # The same image twice is one object: its bytes travel once.
        if names.setdefault(id(tensor), name) == name:
            tensors[name] = tensor
    document = msgspec.json.encode(
        _without_bulk(request), enc_hook=lambda value: _encode_custom(value, names)
    )
    header: dict[str, Any] = {"__metadata__": {"request": document.decode()}}
    parts: list[Buffer] = []
    offset = 0
    # Wide dtypes first: then each tensor is aligned to its own size without gaps, which
    # safetensors does not allow.
    for name, tensor in sorted(tensors.items(), key=lambda named: -DTYPE_SIZES[named[1].dtype]):
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (offset, end),
        }
        parts.append(tensor.data)
        offset = end
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    return [struct.pack("<Q", len(encoded)) + encoded, *parts]


def decode_binary(body: Buffer) -> GenerateRequest:
    """Parse and check a binary body; the tensors refer to `body`, which must not change.

    Raises:
        InvalidRequest: for a body that is not a safetensors container, or not a request.
    """
    document, tensors = read_container(memoryview(body))
    taken = _Taken(tensors)
    request = _with_bulk(parse_request(document, taken.decode_custom), taken)
    if unnamed := tensors.keys() - taken.names:
        raise InvalidRequest(f"Tensors that nothing names: {', '.join(sorted(unnamed)[:5])}")
    return check_request(request)


class _Taken:
    """The tensors of a container, and which of them the request has named so far."""

    def __init__(self, tensors: dict[str, TensorRef]) -> None:
        self._tensors = tensors
        self.names: set[str] = set()

    def find(self, name: str) -> TensorRef | None:
        self.names.add(name)
        return self._tensors.get(name)

    def take(self, name: str) -> TensorRef:
        tensor = self.find(name)
        if tensor is None:
            raise InvalidRequest(f"The container holds no tensor {name!r}", param=name)
        return tensor

    def decode_custom(self, kind: type, value: Any) -> Any:
        if kind is MultiModalItem:
            return unpack_item(value, self._unpack_tensor, param="features.kwargs_data")
        if not isinstance(value, str):
            raise InvalidRequest("a tensor is named by a string", param="prompt_embeds.tensors")
        return self.take(value)

    def _unpack_tensor(self, value: Any, param: str) -> TensorRef | None:
        return self.take(value) if isinstance(value, str) else None


def read_container(body: memoryview) -> tuple[str, dict[str, TensorRef]]:
    """Split a safetensors container into the request's JSON and its tensors by name."""
    if len(body) < 8:
        raise InvalidRequest("The body is shorter than a safetensors header")
    (header_length,) = struct.unpack("<Q", body[:8])
    if header_length > len(body) - 8:
        raise InvalidRequest(
            f"The header is said to have {header_length} bytes, the body has {len(body) - 8}"
        )
    try:
        header = msgspec.json.decode(body[8 : 8 + header_length])
        document = header.pop("__metadata__")["request"]
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The safetensors header is not JSON: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidRequest("The safetensors header has no __metadata__.request") from error
    if not isinstance(document, str):
        raise InvalidRequest("The safetensors header has no __metadata__.request")
    return document, _read_tensors(header, body[8 + header_length :])


def _read_tensors(header: dict[str, Any], data: memoryview) -> dict[str, TensorRef]:
    tensors = {}
    spans = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise InvalidRequest(f"{name}: a tensor has dtype, shape and data_offsets", param=name)
        offsets = entry["data_offsets"]
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(offset) is int for offset in offsets)
            or not 0 <= offsets[0] <= offsets[1] <= len(data)
        ):
            raise InvalidRequest(f"{name}: data_offsets lie outside the body", param=name)
        begin, end = offsets
        dtype = entry["dtype"]
        tensors[name] = checked_tensor(
            _TORCH_DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype,
            entry["shape"],
            data[begin:end],
            param=name,
        )
        spans.append((begin, end))
    _check_spans(spans, len(data))
    return tensors


def _check_spans(spans: list[tuple[int, int]], length: int) -> None:
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise InvalidRequest("The tensors' bytes overlap or leave a gap")
        position = end
    if position != length:
        raise InvalidRequest(f"{length - position} bytes follow the last tensor")


def _named_tensors(request: GenerateRequest) -> Iterator[tuple[str, TensorRef]]:
    yield _TOKEN_IDS, _ids_tensor(request.token_ids)
    if request.encoder_token_ids is not None:
        yield _ENCODER_TOKEN_IDS, _ids_tensor(request.encoder_token_ids)
    if request.prompt_embeds is not None:
        for index, tensor in enumerate(request.prompt_embeds.tensors):
            yield f"prompt_embeds/{index}", tensor
    if request.features is None:
        return
    for modality, index, placeholder in _placeholders(request.features):
        if placeholder.is_embed is not None:
            mask = bytes(placeholder.is_embed)
            yield _mask_name(modality, index), TensorRef("bool", (len(mask),), mask)
    yield from _item_tensors("", request.features.kwargs_data)
    yield from _item_tensors("metadata/", request.features.mm_metadata)


def _ids_tensor(token_ids: list[int]) -> TensorRef:
    count = len(token_ids)
    return TensorRef("int32", (count,), struct.pack(f"<{count}i", *token_ids))


def _item_tensors(
    prefix: str, data: dict[str, list[MultiModalItem | None]] | None
) -> Iterator[tuple[str, TensorRef]]:
    for modality, items in (data or {}).items():
        for index, item in enumerate(items):
            for path, tensor in () if item is None else item.tensors():
                yield f"{prefix}{modality}/{index}/{path}", tensor


def _placeholders(features: Features) -> Iterator[tuple[str, int, PlaceholderRange]]:
    for modality, placeholders in features.mm_placeholders.items():
        for index, placeholder in enumerate(placeholders):
            yield modality, index, placeholder


def _mask_name(modality: str, index: int) -> str:
    return f"placeholder/{modality}/{index}/is_embed"


def _without_bulk(request: GenerateRequest) -> GenerateRequest:
    """The request without the lists that travel as tensors."""
    features = request.features
    if features is not None:
        features = msgspec.structs.replace(
            features,
            mm_placeholders={
                modality: [
                    PlaceholderRange(placeholder.offset, placeholder.length)
                    for placeholder in placeholders
                ]
                for modality, placeholders in features.mm_placeholders.items()
            },
        )
    encoder_token_ids: list[int] | None = None if request.encoder_token_ids is None else []
    return msgspec.structs.replace(
        request, token_ids=[], encoder_token_ids=encoder_token_ids, features=features
    )


def _with_bulk(request: GenerateRequest, taken: _Taken) -> GenerateRequest:
    """The request with the lists that travelled as tensors."""
    token_ids = _taken_ids(request.token_ids, _TOKEN_IDS, taken)
    encoder_token_ids = request.encoder_token_ids
    if encoder_token_ids is not None:
        encoder_token_ids = _taken_ids(encoder_token_ids, _ENCODER_TOKEN_IDS, taken)
    features = request.features
    if features is not None:
        features = msgspec.structs.replace(
            features,
            mm_placeholders={
                modality: [
                    _with_mask(placeholder, taken.find(_mask_name(modality, index)))
                    for index, placeholder in enumerate(placeholders)
                ]
                for modality, placeholders in features.mm_placeholders.items()
            },
        )
    return msgspec.structs.replace(
        request, token_ids=token_ids, encoder_token_ids=encoder_token_ids, features=features
    )


def _taken_ids(in_json: list[int], name: str, taken: _Taken) -> list[int]:
    """The ids that travelled as the tensor `name`; the list in the JSON must be empty."""
    ids = taken.take(name)
    if ids.dtype != "int32" or len(ids.shape) != 1:
        raise InvalidRequest(f"{name} must be an I32 tensor of one dimension", param=name)
    if in_json:
        raise InvalidRequest(f"{name} is in the JSON and a tensor as well", param=name)
    data = bytes(ids.data)
    token_ids = _int32(data)
    # The highest byte of each has the sign: to ask each number would take as long as to read them.
    if not data[3::4].isascii():
        lowest = min(token_ids)
        param = f"{name}[{token_ids.index(lowest)}]"
        raise InvalidRequest(f"{param} is {lowest}, ids are not negative", param=param)
    return token_ids


def _int32(data: bytes) -> list[int]:
    numbers = array("i", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _with_mask(placeholder: PlaceholderRange, mask: TensorRef | None) -> PlaceholderRange:
    if mask is None:
        return placeholder
    if placeholder.is_embed is not None:
        raise InvalidRequest(
            "is_embed is in the JSON and a tensor as well", param="features.mm_placeholders"
        )
    if mask.dtype != "bool" or len(mask.shape) != 1:
        raise InvalidRequest(
            "is_embed must be a BOOL tensor of one dimension", param="features.mm_placeholders"
        )
    return msgspec.structs.replace(placeholder, is_embed=[byte == 1 for byte in mask.data])


def _encode_custom(value: Any, names: dict[int, str]) -> Any:
    if isinstance(value, MultiModalItem):
        return pack_item(value, lambda tensor: names[id(tensor)])
    if isinstance(value, TensorRef):
        return names[id(value)]
    raise TypeError(f"{type(value).__name__} does not cross the wire")
