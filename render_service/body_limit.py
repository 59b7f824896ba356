"""A limit on the size of request bodies that holds before a body is read whole."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared_protocol.error_answer import answer_error
from shared_protocol.errors import PayloadTooLarge, TandemError, Unavailable
from shared_protocol.startup.body_memory import BodyMemory, BodyShare

LINGER_S: Final = 1.0
"""How long the rest of a refused body is read and thrown away."""


class BodyLimit:
    """ASGI middleware: answers 413 as soon as more than `max_bytes` are announced or have come.

    What is above the memory that all bodies have is answered 503 in the same way.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        memory: BodyMemory,
        on_no_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_no_memory: called for each request that finds no memory for its body.
        """
        self._app = app
        self._max_bytes = max_bytes
        self._memory = memory
        self._on_no_memory = on_no_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._memory.one() as share:
            await self._answer(_LimitedReceive(receive, self._max_bytes, share), scope, send)

    async def _answer(self, limited: "_LimitedReceive", scope: Scope, send: Send) -> None:
        announced = Headers(scope=scope).get("content-length", "0")
        try:
            limited.announce(int(announced) if announced.isdecimal() else 0)
        except TandemError as error:
            await self._refuse(error, limited.unlimited, send)
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
            await self._refuse(limited.refusal, limited.unlimited, send)

    async def _refuse(self, error: TandemError, receive: Receive, send: Send) -> None:
        if isinstance(error, Unavailable):
            self._on_no_memory()
        await _answer_and_linger(error, receive, send)


async def _answer_and_linger(error: TandemError, receive: Receive, send: Send) -> None:
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
        unlimited: the same messages, counted no more.
        refusal: why the body is not read on.
    """

    def __init__(self, receive: Receive, max_bytes: int, share: BodyShare) -> None:
        self.unlimited = receive
        self._max_bytes = max_bytes
        self._share = share
        self.refusal: TandemError | None = None

    def announce(self, size: int) -> None:
        """
        Raises:
            PayloadTooLarge: if that is more than one body may have.
            Unavailable: if it is more than there is at the moment.
        """
        self._check_size(size)
        self._share.announce(size)

    async def __call__(self) -> Message:
        message = await self.unlimited()
        size = len(message.get("body", b""))
        try:
            self._check_size(self._share.size + size)
            self._share.take(size)
        except TandemError as error:
            self.refusal = error
            raise _Refused from None
        return message

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"The body has more than the {self._max_bytes} bytes that are allowed"
            )
