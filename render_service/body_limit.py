"""A limit on request bodies that holds before a body is read whole."""

import asyncio
import json
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared_protocol.errors import PayloadTooLarge

LINGER_S: Final = 1.0
"""How long the rest of a refused body is read and thrown away."""


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
            await self._refuse(receive, send)
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

        with suppress(_Exceeded):
            await self._app(scope, counting, guarded_send)
        if counting.exceeded and not started:
            await self._refuse(receive, send)

    async def _refuse(self, receive: Receive, send: Send) -> None:
        error = PayloadTooLarge(
            f"The body has more than the {self._max_bytes} bytes that are allowed"
        )
        content = json.dumps(error.body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": content, "more_body": True})
        # A connection that is closed on bytes still unread is reset, and the client may then not
        # see the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


class _Exceeded(Exception):
    """Ends the application's reading of a body that is too large."""


class _CountingReceive:
    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._left = max_bytes

    @property
    def exceeded(self) -> bool:
        return self._left < 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self.exceeded:
            raise _Exceeded
        return message
