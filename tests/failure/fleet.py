"""Two replicas, one of them behind a network that can fail, and two render services."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import httpx
import psutil

from tests.conftest import FLAGS
from tests.engine_priority import put_engine_last
from tests.failure.faulty_link import FaultyLink
from tests.pair import GenerateService, RenderService
from tests.processes import Server, free_port

STALL_S: Final = 4.0
_RENDER_FLAGS: Final = (
    f"--replica-stall-s={STALL_S}",
    "--shutdown-grace-s=60",
)


class Fleet:
    """
    Attributes:
        weak: the replica behind `link`.
        other: the one that nothing happens to.
        renders: each knows both replicas.
    """

    def __init__(
        self, model: Path, logs: Path, *, renders: int = 1, render_flags: Sequence[str] = ()
    ) -> None:
        flags = (*FLAGS, "--shutdown-grace-s=60")
        self.weak = GenerateService(model, *flags, log=logs / "weak.log")
        self.other = GenerateService(model, *flags, log=logs / "other.log")
        self.link = FaultyLink(self.weak.url, free_port())
        urls = [self.link.url, self.other.url]
        self.renders = [
            RenderService(
                model,
                urls,
                *FLAGS,
                *_RENDER_FLAGS,
                *render_flags,
                log=logs / f"render-{index}.log",
            )
            for index in range(renders)
        ]

    @property
    def url(self) -> str:
        return self.renders[0].url

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.link)
            servers: list[Server] = [self.weak, self.other, *self.renders]
            for server in servers:
                stack.callback(server.stop)
                server.start()
            for server in servers:
                server.wait_until_ready()
            self.put_engines_last()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def put_engines_last(self) -> None:
        """Otherwise two of them take all, and a failure is told of behind what came before it."""
        for replica in (self.weak, self.other):
            put_engine_last(replica.pid)

    async def wait_for_rotation(self, count: int, within_s: float) -> float:
        """Wait until each render service has `count` replicas in rotation; return the seconds."""
        return await wait_for(
            lambda: all(in_rotation(render.url) == count for render in self.renders), within_s
        )

    def process(self, name: str) -> psutil.Process:
        """The process of the weak replica whose command line has `name`."""
        (process,) = (
            process
            for process in psutil.Process(self.weak.pid).children(recursive=True)
            if name in " ".join(process.cmdline())
        )
        return process


def in_rotation(url: str) -> int:
    try:
        replicas = httpx.get(f"{url}/ready", timeout=5.0, trust_env=False, verify=False).json()[
            "replicas"
        ]
    except httpx.TransportError:
        return -1
    return sum(replica["ready"] for replica in replicas)


async def wait_for(condition: Callable[[], bool], within_s: float) -> float:
    start = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - start < within_s
        await asyncio.sleep(0.05)
    return time.monotonic() - start


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
