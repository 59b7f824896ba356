"""The engine through the life of the process: starting, running, dead."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from generate_service.routes import GeneratingEngine
from shared_protocol.errors import Unavailable
from shared_protocol.serving_info import ServingInfo

logger = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 0.2


class ServedEngine(GeneratingEngine, Protocol):
    """An engine that has started."""

    @property
    def dead(self) -> bool: ...

    def info(self) -> ServingInfo: ...

    def shutdown(self) -> None: ...


class EngineHolder:
    """Starts the engine in the background, so that the service can say "not ready" meanwhile."""

    def __init__(
        self,
        start: Callable[[], Awaitable[ServedEngine]],
        *,
        on_failure: Callable[[], None],
        retry_after_s: int,
    ) -> None:
        """
        Args:
            start: starts the engine.
            on_failure: called once if the engine cannot start, or dies.
            retry_after_s: when asking again makes sense while there is no engine.
        """
        self._start = start
        self._on_failure = on_failure
        self._retry_after_s = retry_after_s
        self._engine: ServedEngine | None = None
        self.failed = False
        self._draining = False

    @property
    def dead(self) -> bool:
        return self.failed or (self._engine is not None and self._engine.dead)

    def get(self) -> ServedEngine:
        """Return the engine.

        Raises:
            Unavailable: while it is starting, and after it has died.
        """
        if self.dead:
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
            if self._engine is not None:
                await asyncio.to_thread(self._engine.shutdown)

    async def _run(self) -> None:
        try:
            self._engine = await self._start()
            logger.info("the engine is ready")
            while not self._engine.dead:
                await asyncio.sleep(_WATCH_INTERVAL_S)
            logger.error("the engine has died")
        except Exception:
            logger.exception("the engine did not start")
        self.failed = True
        self._on_failure()
