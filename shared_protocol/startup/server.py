"""Running an application under uvicorn, and ending it in step with those that send it requests."""

import asyncio
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

DRAIN_S: Final = 2.5
"""From saying "not ready" to taking no more connections: some probes of whoever is in front."""

FAILURE_GRACE_S: Final = 10.0
"""How long streams and uploads may still run once the engine has failed."""


class DrainingServer(uvicorn.Server):
    """A server that says that it is going before it goes."""

    def __init__(self, config: uvicorn.Config, *, on_drain: Callable[[], None]) -> None:
        """
        Args:
            on_drain: called at the first signal, `DRAIN_S` before connections are closed.
        """
        super().__init__(config)
        self._on_drain = on_drain
        self._draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; the second one ends the server as uvicorn does."""
        if self._draining:
            super().handle_exit(sig, frame)
            return
        self._draining = True
        self._on_drain()
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(loop.call_later, DRAIN_S, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    def stop_after_failure(self) -> None:
        """Stop now; what still runs after `FAILURE_GRACE_S` is cut."""
        self.should_exit = True
        asyncio.get_running_loop().call_later(FAILURE_GRACE_S, self._cut)

    def _cut(self) -> None:
        self.force_exit = True
