"""The JSON form of a request: to read, to debug, and to talk with stock vLLM.

A multimodal item travels as vLLM writes it: base64 of a msgpack map, in which a tensor is
``[dtype, shape, Ext(3, bytes)]`` and a field ``[kind, arguments]``.
"""

import binascii
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pybase64

from shared_protocol.errors import InvalidRequest
from shared_protocol.item_codec import pack_item, unpack_item
from shared_protocol.items import MultiModalItem
from shared_protocol.request import GenerateRequest, check_request, check_version
from shared_protocol.tensors import Buffer, TensorRef, checked_tensor

JSON_CONTENT_TYPE: Final = "application/json"

_RAW_VIEW: Final = 3
"""vLLM's msgpack extension code for the bytes of a tensor."""


def encode_json(request: GenerateRequest) -> bytes:
    return msgspec.json.encode(request, enc_hook=_encode_custom)


def decode_json(body: Buffer) -> GenerateRequest:
    """Parse and check a JSON body.

    Raises:
        InvalidRequest: for a body that is not JSON, or not a request; ``param`` names the member.
    """
    return check_request(parse_request(body, _decode_custom))


def parse_request(
    document: Buffer | str, decode_custom: Callable[[type, Any], Any]
) -> GenerateRequest:
    """Parse a request's JSON, whose items and tensors `decode_custom` reads.

    A request that does not parse may be of another version, which then is what to say of it.
    """
    try:
        return msgspec.json.decode(document, type=GenerateRequest, dec_hook=decode_custom)
    except InvalidRequest:
        check_version(document)
        raise
    except msgspec.ValidationError as error:
        check_version(document)
        raise invalid_member(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("The request is nested too deeply") from error


def invalid_member(error: msgspec.ValidationError) -> InvalidRequest:
    """Translate msgspec's "... - at `$.path`" into an error whose param is the path."""
    message, _, path = str(error).partition(" - at `")
    param = path.removesuffix("`").removeprefix("$").removeprefix(".")
    return InvalidRequest(f"{param}: {message}" if param else message, param=param or None)


def encode_item(item: MultiModalItem) -> str:
    """Write an item as vLLM's ``encode_mm_kwargs_item`` does, byte for byte."""
    packed = msgspec.msgpack.encode(pack_item(item, _pack_tensor))
    return binascii.b2a_base64(packed, newline=False).decode("ascii")


def decode_item(text: str, *, param: str) -> MultiModalItem:
    """Read an item of `encode_item` or of stock vLLM.

    Raises:
        InvalidRequest: for anything else.
    """
    try:
        members = msgspec.msgpack.decode(pybase64.b64decode(text, validate=True))
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"{param}: an item is base64 of a msgpack map of its elements", param=param
        ) from error
    return unpack_item(members, _unpack_tensor, param=param)


def _pack_tensor(tensor: TensorRef) -> tuple[str, tuple[int, ...], msgspec.msgpack.Ext]:
    return tensor.dtype, tensor.shape, msgspec.msgpack.Ext(_RAW_VIEW, tensor.data)


def _unpack_tensor(value: Any, param: str) -> TensorRef | None:
    if not (isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)):
        return None
    dtype, shape, raw = value
    if not isinstance(raw, msgspec.msgpack.Ext) or raw.code != _RAW_VIEW:
        raise InvalidRequest(f"{param}: the tensor's bytes must be inline", param=param)
    return checked_tensor(dtype, shape, raw.data, param=param)


def _encode_custom(value: Any) -> Any:
    if isinstance(value, MultiModalItem):
        return encode_item(value)
    if isinstance(value, TensorRef):
        text = binascii.b2a_base64(value.data, newline=False).decode("ascii")
        return {"dtype": value.dtype, "shape": value.shape, "data": text}
    raise TypeError(f"{type(value).__name__} does not cross the wire")


def _decode_custom(kind: type, value: Any) -> Any:
    if kind is MultiModalItem:
        if not isinstance(value, str):
            raise InvalidRequest("an item is a base64 string", param="features.kwargs_data")
        return decode_item(value, param="features.kwargs_data")
    return _decode_tensor(value, param="prompt_embeds.tensors")


def _decode_tensor(value: Any, *, param: str) -> TensorRef:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data"}:
        raise InvalidRequest(f"{param}: a tensor has dtype, shape and data", param=param)
    try:
        raw = pybase64.b64decode(value["data"], validate=True)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{param}: data is not base64", param=param) from error
    return checked_tensor(value["dtype"], value["shape"], raw, param=param)
