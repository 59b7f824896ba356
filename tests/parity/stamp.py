"""Middleware for ``--middleware``: a class and a function, each of which leaves a header."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Stamp:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamping(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("x-stamp", "class")
            await send(message)

        await self._app(scope, receive, stamping)


async def stamp(request: Request, call_next: Callable[[Any], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers["x-stamped"] = "function"
    return response
