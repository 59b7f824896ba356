"""Processes of a real generate service are killed: nothing is left over, and every stream ends."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.checkpoints import checkpoint
from tests.pair import GenerateService

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.anyio]

logger = logging.getLogger(__name__)

PATH = "/inference/v1/generate"
STREAM: dict[str, Any] = {
    "token_ids": [5, 6, 7],
    "sampling_params": {"max_tokens": 1000, "ignore_eos": True},
    "stream": True,
}
STREAMS = 4
# Of the death to "not ready". vLLM looks after a worker, and the worker's engine then tells.
NOT_READY_WITHIN_S = 1.0
GONE_WITHIN_S = 5.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GenerateService]:
    with GenerateService(checkpoint("gemma3"), log=tmp_path / "generate.log") as service:
        yield service


def group_of(service: GenerateService) -> list[psutil.Process]:
    """What runs in the service's process group."""
    return [
        process
        for process in psutil.process_iter()
        if in_group(process, service.pid) and process.status() != psutil.STATUS_ZOMBIE
    ]


def in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group
    except ProcessLookupError:
        return False


def named(service: GenerateService, name: str) -> psutil.Process:
    (process,) = (p for p in group_of(service) if name in " ".join(p.cmdline()))
    return process


async def wait_for(condition: Callable[[], bool], within_s: float) -> float:
    """Return the seconds until `condition` holds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s
        await asyncio.sleep(0.02)
    return time.monotonic() - start


@asynccontextmanager
async def streaming(service: GenerateService) -> AsyncIterator[list[asyncio.Task[str]]]:
    """Streams of which each has begun."""
    begun = [asyncio.Event() for _ in range(STREAMS)]
    async with httpx.AsyncClient(base_url=service.url, timeout=60.0, trust_env=False) as client:
        tasks = [
            asyncio.create_task(read_stream(client, index, event))
            for index, event in enumerate(begun)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        yield tasks
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_stream(client: httpx.AsyncClient, index: int, begun: asyncio.Event) -> str:
    text = ""
    body = STREAM | {"request_id": f"r{index}"}
    async with client.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        async for chunk in response.aiter_text():
            text += chunk
            begun.set()
    return text


async def status_of(service: GenerateService, path: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return (await client.get(service.url + path)).status_code
        except httpx.TransportError:
            return 0


async def test_nothing_outlives_the_service(service: GenerateService) -> None:
    await kill(service)


async def test_nothing_outlives_a_service_of_several_engines(tmp_path: Path) -> None:
    """Beside them is vLLM's coordinator, a process of another kind."""
    log = tmp_path / "generate.log"
    with GenerateService(checkpoint("gemma3"), "--data-parallel-size=2", log=log) as service:
        assert len([p for p in group_of(service) if "Coordinator" in " ".join(p.cmdline())]) == 1
        await kill(service)


async def kill(service: GenerateService) -> None:
    async with streaming(service) as tasks:
        assert len(group_of(service)) >= 3
        os.kill(service.pid, signal.SIGKILL)
        gone_after = await wait_for(lambda: not group_of(service), GONE_WITHIN_S)
        logger.info("the last process was gone after %.2f s", gone_after)
        for task in tasks:
            with pytest.raises(httpx.TransportError):
                await task


@pytest.mark.parametrize("victim", ["EngineCore", "Worker"])
async def test_the_service_ends_with_its_engine(service: GenerateService, victim: str) -> None:
    # Looked for before, as it takes a while, and the streams do not last for ever.
    process = named(service, victim)
    async with streaming(service) as tasks:
        process.kill()
        start = time.monotonic()
        for path in ("/ready", "/health"):
            while await status_of(service, path) == 200:
                assert time.monotonic() - start < NOT_READY_WITHIN_S
                await asyncio.sleep(0.02)
        logger.info("not ready %.2f s after the death", time.monotonic() - start)
        for text in await asyncio.gather(*tasks):
            assert text.count('"error"') == 1
            assert text.endswith("data: [DONE]\n\n")
        logger.info("streams ended %.2f s after the death", time.monotonic() - start)
    assert await asyncio.to_thread(service.wait_for_exit, 15.0) == 1
    logger.info("the service ended %.2f s after the death", time.monotonic() - start)
    await wait_for(lambda: not group_of(service), GONE_WITHIN_S)


async def test_the_engine_is_started_again(tmp_path: Path) -> None:
    log = tmp_path / "generate.log"
    with GenerateService(checkpoint("gemma3"), "--on-engine-death=restart", log=log) as service:
        core, worker = (named(service, name) for name in ("EngineCore", "Worker"))
        async with streaming(service) as tasks:
            core.kill()
            for text in await asyncio.gather(*tasks):
                assert text.count('"error"') == 1
        assert await status_of(service, "/ready") == 503
        assert await status_of(service, "/health") == 200
        start = time.monotonic()
        await asyncio.to_thread(service.wait_until_ready)
        logger.info("ready %.1f s after the death", time.monotonic() - start)
        assert not core.is_running()
        assert not worker.is_running()
        async with streaming(service) as tasks:
            assert all(text.count('"error"') == 0 for text in await asyncio.gather(*tasks))
        os.kill(service.pid, signal.SIGTERM)
        assert await asyncio.to_thread(service.wait_for_exit, 20.0) == 0
        await wait_for(lambda: not group_of(service), GONE_WITHIN_S)
