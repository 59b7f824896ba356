"""Who may ask, and how much of it: keys, and the share of each."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from render_service.open_paths import needs_key
from shared_protocol.error_answer import answer_error
from shared_protocol.errors import TooManyRequests, Unauthorized
from shared_protocol.keys import KeyDigest, KeyRing

_POLICY_VIOLATION: Final = 1008
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class KeyLimits:
    """
    Attributes:
        max_requests: that one key may have answered at a time; 0 is no limit.
        requests_per_minute: of one key. That many may come at once, and then one for each part of
            a minute; 0 is no limit.
    """

    max_requests: int = 0
    requests_per_minute: int = 0


class KeyGate:
    """ASGI middleware: answers 401 without a key, and 429 beyond its share."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        limits: KeyLimits,
        on_excess: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_excess: called for each request beyond a key's share.
        """
        self._app = app
        self._keys = keys
        self._limits = limits
        self._on_excess = on_excess
        # No more than there have been keys: whoever has none gets no share.
        self._shares: dict[KeyDigest, _Share] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not needs_key(scope):
            await self._app(scope, receive, send)
            return
        holder = self._keys.holder(scope)
        if holder is None:
            await _refuse(scope, send, Unauthorized("A valid key is required"))
            return
        share = self._shares.setdefault(holder, _Share(self._limits))
        if (excess := share.excess()) is not None:
            self._on_excess()
            await _refuse(scope, send, excess)
            return
        share.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            share.end()


async def _refuse(scope: Scope, send: Send, error: Unauthorized | TooManyRequests) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
    else:
        await answer_error(send, error)


class _Share:
    """What one key uses."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._running = 0
        self._left = float(limits.requests_per_minute)
        self._counted_at = time.monotonic()

    def excess(self) -> TooManyRequests | None:
        """Why one more request is too much; None if it is not."""
        limits = self._limits
        if limits.max_requests and self._running >= limits.max_requests:
            return TooManyRequests(
                f"This key has {self._running} requests running, which is its limit"
            )
        if limits.requests_per_minute:
            self._fill_up()
            if self._left < 1:
                return TooManyRequests(
                    f"This key has sent its {limits.requests_per_minute} requests per minute",
                    # Rounded first: a fraction of a millisecond is no second more.
                    retry_after_s=math.ceil(round((1 - self._left) * self._interval_s, 3)),
                )
        return None

    def begin(self) -> None:
        self._running += 1
        self._left -= 1

    def end(self) -> None:
        self._running -= 1

    @property
    def _interval_s(self) -> float:
        return _MINUTE_S / self._limits.requests_per_minute

    def _fill_up(self) -> None:
        now = time.monotonic()
        earned = (now - self._counted_at) / self._interval_s
        self._left = min(self._left + earned, float(self._limits.requests_per_minute))
        self._counted_at = now
