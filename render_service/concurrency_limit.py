"""A limit on the requests that one process answers at a time."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from render_service.open_paths import is_open
from shared_protocol.error_answer import answer_error
from shared_protocol.errors import Unavailable

_TRY_AGAIN_LATER = 1013


class ConcurrencyLimit:
    """ASGI middleware: answers 503 at once while `max_requests` are being answered.

    Not 429: it is this process that has too much to do, and the next one behind the same address
    may have less. What only asks how the service is always gets an answer.
    """

    def __init__(
        self, app: ASGIApp, *, max_requests: int, on_refusal: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            on_refusal: called for each request that is not answered.
        """
        self._app = app
        self._max_requests = max_requests
        self._on_refusal = on_refusal
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_open(scope):
            await self._app(scope, receive, send)
        elif self._running < self._max_requests:
            self._running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1
        else:
            self._on_refusal()
            await self._refuse(scope, send)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
        else:
            await answer_error(
                send, Unavailable(f"{self._max_requests} requests are being answered already")
            )
