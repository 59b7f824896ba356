"""Every service is ended and started again in turn, under load: no request is lost."""

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.failure.fleet import Fleet
from tests.failure.streams import read_chat, whole_texts
from tests.processes import Server

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.anyio,
    # Four starts on cores that the load takes as well.
    pytest.mark.timeout(1200),
]

logger = logging.getLogger(__name__)

CLIENTS = 8
TOKENS = 900
# Two cores start an engine beside all that runs: who is slow is not to be taken for silent.
PATIENT = ("--probe-timeout-s=5", "--replica-stall-s=30")


class Balancer:
    """What stands in front of render services: it looks who is ready, and asks one of those."""

    def __init__(self, client: httpx.AsyncClient, urls: list[str]) -> None:
        self._client = client
        self._urls = urls
        self._ready: set[str] = set(urls)

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._look())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _look(self) -> None:
        while True:
            for url in self._urls:
                if await self._is_ready(url):
                    self._ready.add(url)
                else:
                    self._ready.discard(url)
            await asyncio.sleep(0.2)

    async def _is_ready(self, url: str) -> bool:
        try:
            answer = await self._client.get(f"{url}/ready", timeout=2.0)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def choose(self) -> str:
        """One that is ready; any if none says so, as whoever balances loads does then."""
        return random.choice(sorted(self._ready) or self._urls)


async def test_a_rolling_restart_loses_no_request(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limits = httpx.Limits(max_connections=None)
    logs = tmp_path_factory.mktemp("logs")
    with Fleet(checkpoint("gemma3"), logs, renders=2, render_flags=PATIENT) as fleet:
        async with httpx.AsyncClient(timeout=180.0, limits=limits, trust_env=False) as client:
            balancer = Balancer(client, [render.url for render in fleet.renders])
            whole = await whole_texts(client, fleet.url, tokens=TOKENS)
            over = asyncio.Event()
            async with balancer.looking(), asyncio.TaskGroup() as group:
                asking = [
                    group.create_task(ask_on(client, balancer, whole, over, number))
                    for number in range(CLIENTS)
                ]
                servers: list[Server] = [fleet.weak, fleet.other, *fleet.renders]
                for server in servers:
                    await restart(server)
                    fleet.put_engines_last()
                    await fleet.wait_for_rotation(2, 30.0)
                over.set()
    outcomes = sum((task.result() for task in asking), Counter[str]())
    logger.info("%s", dict(outcomes))
    assert outcomes.keys() == {"whole"}
    assert outcomes["whole"] > 4 * CLIENTS


async def restart(server: Server) -> None:
    os.kill(server.pid, signal.SIGTERM)
    code = await asyncio.to_thread(server.wait_for_exit, 90.0)
    assert code == 0, server.log_tail()
    server.start()
    await asyncio.to_thread(server.wait_until_ready)


async def ask_on(
    client: httpx.AsyncClient,
    balancer: Balancer,
    whole: dict[str, str],
    over: asyncio.Event,
    number: int,
) -> Counter[str]:
    """Ask until it is over; count how the streams ended."""
    outcomes: Counter[str] = Counter()
    begun = asyncio.Semaphore(0)
    prompts = sorted(whole)
    while not over.is_set():
        prompt = prompts[(number + outcomes.total()) % len(prompts)]
        ending = await read_chat(client, balancer.choose(), prompt, begun, tokens=TOKENS)
        kind = "whole" if ending.whole and ending.text == whole[prompt] else f"{ending}"[:500]
        outcomes[kind] += 1
    return outcomes
