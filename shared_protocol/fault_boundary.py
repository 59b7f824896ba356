"""The outermost thing that an application of either service does with a fault of its own."""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from shared_protocol.errors import InternalError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


class FaultBoundary:
    """ASGI middleware: answers an unhandled exception with a 500 that tells nothing of it.

    What frameworks do is not enough: they raise again, whereupon the server closes the connection
    without having said so, and the next request on it, of somebody else perhaps, is lost.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            if started or scope["type"] != "http":
                raise
            logger.exception("a request failed")
            await _answer(send)


async def _answer(send: Send) -> None:
    error = InternalError("Internal server error")
    content = json.dumps(error.body()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
