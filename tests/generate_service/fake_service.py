"""The generate service around a fake engine, here or as a process of its own."""

import asyncio
import multiprocessing
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import httpx

from generate_service.service import make_server, run
from generate_service.settings import GenerateSettings
from tests.generate_service import fake_engine
from tests.generate_service.fake_engine import FakeEngine, Script
from tests.processes import free_port

PATH = "/inference/v1/generate"
REQUEST: dict[str, Any] = {"request_id": "r", "token_ids": [1, 2], "sampling_params": {}}


@asynccontextmanager
async def serving(
    script: Script, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine]]:
    engine = FakeEngine(script)

    async def start() -> FakeEngine:
        return engine

    port = free_port()
    server, _ = make_server(
        start, GenerateSettings(host="127.0.0.1", port=port, **settings), log_level="critical"
    )
    task = asyncio.create_task(server.serve())
    url = f"http://127.0.0.1:{port}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=10.0, trust_env=False, limits=limits
    ) as client:
        await until(lambda: server.started)
        yield client, engine
    server.should_exit = True
    await task
    # uvloop closes the socket in a later turn.
    await asyncio.sleep(0.01)
    assert engine.shut_down


async def until(condition: Callable[[], object], within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


class FakeService:
    """A process of its own; ready inside the context, and gone afterwards."""

    def __init__(self, script: str, **settings: Any) -> None:
        """
        Args:
            script: the name of one of `fake_engine`, or ``starting`` for an engine that never is.
        """
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        own = {"host": "127.0.0.1", "port": port, **settings}
        self._ready_path = "/health" if script == "starting" else "/ready"
        self._process = _PROCESSES.Process(target=_run, args=(script, own))

    def __enter__(self) -> Self:
        self._process.start()
        while not self._is_ready():
            assert self._process.is_alive()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_for_exit(self, within_s: float) -> int | None:
        """Return the exit status, minus the signal's number if a signal ended it."""
        self._process.join(within_s)
        return self._process.exitcode

    def _is_ready(self) -> bool:
        try:
            return httpx.get(self.url + self._ready_path, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


# Forked from one that has imported all this: each would take many seconds for it.
_PROCESSES: Final = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def _run(script: str, settings: dict[str, Any]) -> None:
    sys.exit(run(lambda: _start(script), GenerateSettings(**settings), log_level="info"))


async def _start(script: str) -> FakeEngine:
    if script == "starting":
        await asyncio.to_thread(threading.Event().wait)
    return FakeEngine(getattr(fake_engine, script))
