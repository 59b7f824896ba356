"""Bodies put together by hand: what no encoder of ours would write."""

import struct
from typing import Any

import msgspec

from shared_protocol.binary_codec import SAFETENSORS_DTYPES, decode_binary, encode_binary
from shared_protocol.json_codec import decode_json, encode_json
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import TensorRef

DECODERS = {"json": decode_json, "binary": decode_binary}
ENCODERS = {"json": encode_json, "binary": encode_binary}


def frame_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def container(document: Any, tensors: dict[str, TensorRef] | None = None) -> bytes:
    """A binary body of any JSON; `token_ids` 1, 2, 3 unless `tensors` says otherwise."""
    ids = TensorRef("int32", (3,), struct.pack("<3i", 1, 2, 3))
    entries: dict[str, Any] = {}
    data = b""
    for name, tensor in ({"token_ids": ids} | (tensors or {})).items():
        entries[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (len(data), len(data) + tensor.nbytes),
        }
        data += tensor.data
    return raw_container(document, entries, data)


def raw_container(document: Any, entries: dict[str, Any], data: bytes) -> bytes:
    metadata = {"request": msgspec.json.encode(document).decode()}
    return frame_header(msgspec.json.encode({"__metadata__": metadata} | entries), data)


def document_of(body: bytes) -> Any:
    """The JSON that rides in a binary body."""
    return msgspec.json.decode(header_of(body)["__metadata__"]["request"])


def header_of(body: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", body[:8])
    header: dict[str, Any] = msgspec.json.decode(body[8 : 8 + length])
    return header


def with_json(request: GenerateRequest, encoding: str, document: Any) -> bytes:
    """The body of `request` with its JSON replaced."""
    if encoding == "json":
        return msgspec.json.encode(document)
    body = encode_binary(request)
    header = header_of(body)
    del header["__metadata__"]
    (length,) = struct.unpack("<Q", body[:8])
    return raw_container(document, header, body[8 + length :])


def json_of(request: GenerateRequest, encoding: str) -> Any:
    if encoding == "json":
        return msgspec.json.decode(encode_json(request))
    return document_of(encode_binary(request))
