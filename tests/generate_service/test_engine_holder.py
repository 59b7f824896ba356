"""The engine through the life of the service: it starts, dies, is started again, or never is."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from generate_service import engine_holder
from generate_service.app import create_app
from generate_service.engine_holder import EngineHolder
from generate_service.running_requests import RunningRequests
from generate_service.settings import GenerateSettings
from shared_protocol.serving_info import INFO_PATH
from tests.generate_service.fake_engine import FakeEngine, three_tokens
from tests.generate_service.fake_service import PATH, REQUEST, until

pytestmark = pytest.mark.anyio

RETRY_AFTER_S = 3


@dataclass
class Starter:
    """Starts engines as it is told to.

    Attributes:
        refusals: how many of the starts to come do not succeed.
        engines: those that were started.
        others_running: at each start, how many engines had not been shut down.
    """

    refusals: int = 0
    engines: list[FakeEngine] = field(default_factory=list)
    others_running: list[int] = field(default_factory=list)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self) -> FakeEngine:
        await self.may_start.wait()
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("no weights")
        self.others_running.append(sum(not engine.shut_down for engine in self.engines))
        self.engines.append(FakeEngine(three_tokens))
        return self.engines[-1]

    async def has_started(self, count: int) -> None:
        await until(lambda: len(self.engines) == count)


@dataclass
class Service:
    holder: EngineHolder
    starter: Starter
    client: httpx.AsyncClient
    failures: list[None]

    async def status(self, path: str) -> int:
        return (await self.client.get(path)).status_code

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(5.0):
            while await self.status("/ready") != 200:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def service(max_restarts: int = 0, refusals: int = 0) -> AsyncIterator[Service]:
    starter = Starter(refusals)
    failures: list[None] = []
    holder = EngineHolder(
        starter,
        max_restarts=max_restarts,
        on_failure=lambda: failures.append(None),
        retry_after_s=RETRY_AFTER_S,
    )
    requests = RunningRequests(most=8, retry_after_s=RETRY_AFTER_S)
    app = create_app(holder, requests, GenerateSettings(), version="0")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        holder.running(),
        httpx.AsyncClient(transport=transport, base_url="http://t") as client,
    ):
        yield Service(holder, starter, client, failures)
    assert all(engine.shut_down for engine in starter.engines)


async def test_an_engine_that_does_not_start() -> None:
    async with service(max_restarts=3, refusals=1) as it:
        for path in ("/ready", "/v1/models", INFO_PATH):
            response = await it.client.get(path)
            assert response.status_code == 503
            assert response.headers["Retry-After"] == str(RETRY_AFTER_S)
        assert await it.status("/health") == 200
        it.starter.may_start.set()
        await until(lambda: it.failures)
        assert await it.status("/health") == 503
        assert (await it.client.post(PATH, json=REQUEST)).status_code == 503
        assert not it.starter.engines


async def test_a_drain_and_an_engine_that_dies() -> None:
    async with service() as it:
        it.starter.may_start.set()
        await it.wait_until_ready()
        it.holder.drain()
        assert await it.status("/ready") == 503
        assert await it.status(INFO_PATH) == 503
        assert await it.status("/v1/models") == 200
        it.starter.engines[0].dead = True
        assert await it.status("/health") == 503
        await until(lambda: it.failures)
        assert await it.status("/health") == 503
    assert it.failures == [None]
    assert len(it.starter.engines) == 1


async def test_collections_leave_out_what_is_there_when_the_engine_is_ready() -> None:
    """One of all that vLLM consists of holds up the event loop for tenths of a second."""
    async with service(max_restarts=1) as it:
        it.starter.may_start.set()
        await it.wait_until_ready()
        assert not _collected(it.starter.engines[0])
        it.starter.may_start.clear()
        it.starter.engines[0].dead = True
        await until(lambda: it.holder.starting)
        assert _collected(it.starter.engines[0])


def _collected(engine: FakeEngine) -> bool:
    return any(thing is engine for thing in gc.get_objects())


async def test_an_engine_that_dies_is_followed_by_another() -> None:
    async with service(max_restarts=1) as it:
        it.starter.may_start.set()
        await it.wait_until_ready()
        it.starter.may_start.clear()
        it.starter.engines[0].dead = True
        await until(lambda: it.holder.starting)
        assert it.starter.engines[0].shut_down
        assert await it.status("/ready") == 503
        assert await it.status("/health") == 200
        assert (await it.client.post(PATH, json=REQUEST)).status_code == 503
        it.starter.may_start.set()
        await it.wait_until_ready()
        assert (await it.client.post(PATH, json=REQUEST)).status_code == 200
        assert not it.failures
    assert it.starter.others_running == [0, 0]


async def test_restarts_in_a_row_are_bounded() -> None:
    async with service(max_restarts=2) as it:
        it.starter.may_start.set()
        for number in range(3):
            await it.starter.has_started(number + 1)
            it.starter.engines[number].dead = True
        await until(lambda: it.failures)
        assert await it.status("/health") == 503
    assert len(it.starter.engines) == 3


async def test_an_engine_that_ran_for_long_begins_a_new_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_holder, "PROVEN_S", 0.1)
    async with service(max_restarts=1) as it:
        it.starter.may_start.set()
        for number in range(4):
            await it.starter.has_started(number + 1)
            await asyncio.sleep(0.15)
            assert not it.failures
            it.starter.engines[number].dead = True
        await it.starter.has_started(5)


async def test_a_start_that_follows_a_death_and_fails_counts_as_one() -> None:
    async with service(max_restarts=2) as it:
        it.starter.may_start.set()
        await it.wait_until_ready()
        it.starter.refusals = 1
        it.starter.engines[0].dead = True
        await it.starter.has_started(2)
        it.starter.engines[1].dead = True
        await until(lambda: it.failures)
