"""A limit on request bodies that holds before a body is read whole."""

import json
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared_protocol.errors import PayloadTooLarge


class BodyLimit:
    """ASGI middleware: answers 413 as soon as more than `max_bytes` are announced or have come."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await self._refuse(send)
            return
        counting = _CountingReceive(receive, self._max_bytes)
        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if counting.exceeded and not started:
                # Whatever the application makes of the cut body is not the reason.
                return
            started = True
            await send(message)

        await self._app(scope, counting, guarded_send)
        if counting.exceeded and not started:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        error = PayloadTooLarge(
            f"The body has more than the {self._max_bytes} bytes that are allowed"
        )
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(error.body()).encode()})


class _CountingReceive:
    """Passes messages on until the limit is exceeded, then says that the client has gone."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._left = max_bytes
        self.exceeded = False

    async def __call__(self) -> MutableMapping[str, Any]:
        if self.exceeded:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.exceeded = True
            return {"type": "http.disconnect"}
        return message
