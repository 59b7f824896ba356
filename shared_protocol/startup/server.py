"""Running an application under uvicorn, and ending it in step with those that send it requests."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

DRAIN_S: Final = 2.5
"""From saying "not ready" to taking no more connections: some probes of whoever is in front."""

CUT_S: Final = 1.5
"""From the end of the grace to the cutting of connections: what is said last has to arrive."""

FAILURE_GRACE_S: Final = 10.0
"""How long streams and uploads may still run once the engine has failed."""


def end_on_signals() -> None:
    """Have SIGTERM and SIGINT end the process until a server looks after them.

    The first process of a container would not even notice them otherwise.
    """
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda number, _: sys.exit(128 + number))


class DrainingServer(uvicorn.Server):
    """A server that says that it is going before it goes.

    The first SIGTERM or SIGINT begins the end: not ready at once, no more connections after
    `DRAIN_S`, and the server stops when nothing runs any more. The second one ends the process.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_drain: Callable[[], None],
        grace_s: float | None = None,
        on_grace_over: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            on_drain: called at the first signal.
            grace_s: how long requests may still run after it; None for as long as they do.
            on_grace_over: called then, to end what still runs; connections are cut `CUT_S` later.
        """
        super().__init__(config)
        self._on_drain = on_drain
        self._grace_s = grace_s
        self._on_grace_over = on_grace_over
        self._draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining:
            # Not uvicorn's own way, which waits for the application's end, and for its threads.
            # Nor the signal's, which the kernel keeps from the first process of a container.
            os._exit(128 + sig)
        self._draining = True
        self._on_drain()
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_end)

    def _begin_end(self) -> None:
        loop = asyncio.get_running_loop()
        if self._grace_s is None:
            loop.call_later(DRAIN_S, self._stop)
            return
        loop.call_later(min(DRAIN_S, self._grace_s), self._stop)
        loop.call_later(self._grace_s, self._end_grace)

    def _stop(self) -> None:
        self.should_exit = True

    def _end_grace(self) -> None:
        if self._on_grace_over is not None:
            self._on_grace_over()
        asyncio.get_running_loop().call_later(CUT_S, self._cut)

    def stop_after_failure(self) -> None:
        """Stop now; what still runs after `FAILURE_GRACE_S` is cut."""
        self.should_exit = True
        asyncio.get_running_loop().call_later(FAILURE_GRACE_S, self._cut)

    def _cut(self) -> None:
        """Cut connections; not uvicorn's `force_exit`, which leaves out the application's end."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
