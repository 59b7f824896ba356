"""An error as the answer to an ASGI request, for what stands in front of the routes."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from shared_protocol.errors import TandemError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


async def answer_error(
    send: Send, error: TandemError, *, close: bool = False, complete: bool = True
) -> None:
    """Answer an HTTP request.

    Args:
        close: the connection afterwards.
        complete: False where the caller ends the answer, whose content is then already sent.
    """
    content = json.dumps(error.body()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in error.headers().items()),
        *([(b"connection", b"close")] if close else []),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": not complete})
