"""Reading a request off the socket without trusting it."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, decode_binary
from shared_protocol.errors import InvalidRequest, PayloadTooLarge
from shared_protocol.json_codec import JSON_CONTENT_TYPE, decode_json
from shared_protocol.request import GenerateRequest
from shared_protocol.startup.body_memory import BodyShare

_DECODERS: Final = {JSON_CONTENT_TYPE: decode_json, BINARY_CONTENT_TYPE: decode_binary}


class ClientDisconnect(Exception):
    """The client left before its request was complete."""


def decode_body(scope: Scope, body: bytearray) -> GenerateRequest:
    """Parse a body by its content type; the request's tensors refer to `body`.

    Raises:
        InvalidRequest: for another content type, or a body that is not a request.
    """
    content_type = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    decoder = _DECODERS.get(content_type)
    if decoder is None:
        raise InvalidRequest(
            f"Content-Type must be one of {', '.join(_DECODERS)}, got {content_type or 'none'!r}"
        )
    return decoder(body)


async def read_body(scope: Scope, receive: Receive, share: BodyShare, *, limit: int) -> bytearray:
    """Read the whole body, of at most `limit` bytes, which `share` takes.

    The memory is writable because torch wants to view it.

    Raises:
        PayloadTooLarge: as soon as more is announced or has come.
        Unavailable: as soon as there is no memory for what is announced or has come.
        ClientDisconnect: if the client leaves.
    """
    content_length = Headers(scope=scope).get("content-length", "0")
    announced = int(content_length) if content_length.isdecimal() else 0
    _check_size(announced, limit)
    share.announce(announced)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        _check_size(len(body) + len(part), limit)
        share.take(len(part))
        body += part
        if not message.get("more_body", False):
            return body


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLarge(f"The body has more than the {limit} bytes that are allowed")
