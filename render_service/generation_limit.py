"""A limit on what one request may have generated at a time: choices, prompts, texts to embed.

Each of them is a stream of its own to a replica, and one body has room for millions.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from shared_protocol.errors import InvalidRequest


@dataclass
class _Account:
    left: int
    allowed: int


_account: ContextVar[_Account | None] = ContextVar("generation account", default=None)


class GenerationLimit:
    """ASGI middleware: gives each request `max_generations` to begin."""

    def __init__(self, app: ASGIApp, *, max_generations: int) -> None:
        self._app = app
        self._max_generations = max_generations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _account.set(_Account(self._max_generations, self._max_generations))
        try:
            await self._app(scope, receive, send)
        finally:
            _account.reset(token)


def check_generations(count: int) -> None:
    """See whether the request that is being answered may begin `count` at all.

    Raises:
        InvalidRequest: if it may not.
    """
    if (account := _account.get()) is not None and count > account.allowed:
        raise _too_many(account)


def begin_generations(count: int) -> None:
    """Count what the request that is being answered begins.

    Raises:
        InvalidRequest: if it has begun too many.
    """
    if (account := _account.get()) is None:
        return
    account.left -= count
    if account.left < 0:
        raise _too_many(account)


def _too_many(account: _Account) -> InvalidRequest:
    return InvalidRequest(
        f"One request may have at most {account.allowed} choices, prompts and inputs generated, "
        "each choice of each prompt counted",
        param="n",
    )
