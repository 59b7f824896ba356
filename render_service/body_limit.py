"""A limit on the size of request bodies that holds before a body is read whole."""

import asyncio
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared_protocol.error_answer import answer_error
from shared_protocol.errors import PayloadTooLarge, TandemError

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
        limited = _LimitedReceive(receive, self._max_bytes)
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await _refuse(limited.too_large(), receive, send)
            return
        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if limited.refusal is not None and not started:
                # Whatever the application makes of the cut body is not the reason.
                return
            started = True
            await send(message)

        with suppress(_Refused):
            await self._app(scope, limited, guarded_send)
        if limited.refusal is not None and not started:
            await _refuse(limited.refusal, receive, send)


async def _refuse(error: TandemError, receive: Receive, send: Send) -> None:
    await answer_error(send, error, close=True, complete=False)
    # A connection that is closed on bytes still unread is reset, and the client may then not see
    # the answer.
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


class _Refused(Exception):
    """Ends the application's reading of a body."""


class _LimitedReceive:
    """
    Attributes:
        refusal: why the body is not read on.
    """

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._left = max_bytes
        self.refusal: TandemError | None = None

    def too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The body has more than the {self._max_bytes} bytes that are allowed"
        )

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.refusal = self.too_large()
            raise _Refused
        return message
