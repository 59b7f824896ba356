"""The engine through the life of the process: starting, running, dead, perhaps started again."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from generate_service.routes import GeneratingEngine
from shared_protocol.errors import Unavailable
from shared_protocol.serving_info import ServingInfo

logger = logging.getLogger(__name__)

MAX_RESTARTS: Final = 3
"""Of engines one after another that did not run for `PROVEN_S`: what ends each of them, such as a
broken GPU, is not mended by a further one."""

PROVEN_S: Final = 600.0
"""An engine that ran for so long died of something else than the one before it."""

_WATCH_INTERVAL_S = 0.2


class ServedEngine(GeneratingEngine, Protocol):
    """An engine that has started."""

    @property
    def dead(self) -> bool: ...

    def info(self) -> ServingInfo: ...

    def shutdown(self) -> None:
        """End the engine's processes; may be called again, and once it is dead."""


class EngineHolder:
    """Starts the engine in the background, so that the service can say "not ready" meanwhile.

    starting -> running -> dead -> (restarts left) starting again, or failed. A first start that
    does not succeed is not tried again: its reason, a flag or the model, stays.

    Attributes:
        starting: whether an engine is being started, which cannot be called off: a start that is
            cancelled goes on in its thread.
        failed: whether the last engine has died, or did not start.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[ServedEngine]],
        *,
        max_restarts: int,
        on_failure: Callable[[], None],
        retry_after_s: int,
    ) -> None:
        """
        Args:
            start: starts an engine.
            max_restarts: how many engines may follow one that died, each within `PROVEN_S`.
            on_failure: called once if no further engine is started.
            retry_after_s: when asking again makes sense while there is no engine.
        """
        self._start = start
        self._max_restarts = max_restarts
        self._on_failure = on_failure
        self._retry_after_s = retry_after_s
        self._engine: ServedEngine | None = None
        self.starting = False
        self.failed = False
        self._draining = False

    @property
    def dead(self) -> bool:
        """Whether there will be no engine any more."""
        died = self._engine is not None and self._engine.dead
        return self.failed or (died and not self._max_restarts)

    def get(self) -> ServedEngine:
        """Return the engine.

        Raises:
            Unavailable: while it is starting, and after it has died.
        """
        if self.failed or (self._engine is not None and self._engine.dead):
            raise self._unavailable("The engine of this replica has died")
        if self._engine is None:
            raise self._unavailable("The engine of this replica is starting")
        return self._engine

    def check_ready(self) -> None:
        """Raise `Unavailable` if a render service should send no more requests here."""
        self.get()
        if self._draining:
            raise self._unavailable("This replica is being shut down")

    def drain(self) -> None:
        """Say "not ready" from now on; requests that still come are answered."""
        self._draining = True

    def _unavailable(self, message: str) -> Unavailable:
        return Unavailable(message, retry_after_s=self._retry_after_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._run())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self._shut_down()

    async def _run(self) -> None:
        left, wanted_s = 0, 0.0
        while True:
            lived_s = await self._live()
            if lived_s is not None and lived_s >= wanted_s:
                left, wanted_s = self._max_restarts, PROVEN_S
            if not left:
                break
            left -= 1
            logger.warning("another engine is started; %d more may follow it", left)
        self.failed = True
        self._on_failure()

    async def _live(self) -> float | None:
        """Start an engine and wait until it is dead.

        Returns:
            The seconds from when it was ready; None if it did not start.
        """
        try:
            await self._shut_down()
            # What the last engine left is garbage now.
            gc.unfreeze()
            self.starting = True
            engine = await self._start()
        except Exception:
            logger.exception("the engine did not start")
            self.starting = False
            return None
        self.starting = False
        _spare_collections_what_stays()
        self._engine = engine
        logger.info("the engine is ready")
        began = time.monotonic()
        while not engine.dead:
            await asyncio.sleep(_WATCH_INTERVAL_S)
        logger.error("the engine has died")
        return time.monotonic() - began

    async def _shut_down(self) -> None:
        """Free what the last engine has: the next one needs its memory."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)


def _spare_collections_what_stays() -> None:
    """Leave what was imported and built out of collections, as vLLM's server does.

    It is 700,000 objects, and each collection of the oldest generation would hold up the event
    loop for as long as it takes to go through them, a quarter of a second or more.
    """
    gc.collect()
    gc.freeze()
