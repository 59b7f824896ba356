"""Whatever fails under 32 streams: each ends, what no engine had begun is answered elsewhere.

The model is one whose steps take tens of milliseconds, as a GPU's do: two engines that make
thousands of tokens a second leave the services none of two cores to notice anything with.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.conftest import MODELS
from tests.failure.engine_metrics import metric
from tests.failure.fleet import STALL_S, Fleet, in_rotation
from tests.failure.streams import Ending, Streams, whole_texts

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.anyio]

logger = logging.getLogger(__name__)

STREAMS = 32
LATE = 8
TOKENS = 150
# What the engines of two replicas run at once.
RUNNING = 16
# A probe's interval and its timeout are 0.8 s together.
NOTICED_WITHIN_S = 1.0
SLACK_S = 1.0


@dataclass(frozen=True)
class Failure:
    """
    Attributes:
        ends_within_s: of the failure to the end of the last stream that it hit.
        heal: afterwards; None if the replica has to be started again.
        accepting: whether the replica still begins requests until it leaves the rotation.
        noticed: whether the replica leaves the rotation.
        hits: whether streams end early.
    """

    inflict: Callable[[Fleet], None]
    ends_within_s: float
    heal: Callable[[Fleet], None] | None = None
    accepting: bool = False
    noticed: bool = True
    hits: bool = True


def kill(name: str) -> Callable[[Fleet], None]:
    return lambda fleet: fleet.process(name).kill()


def signal_service(number: signal.Signals) -> Callable[[Fleet], None]:
    return lambda fleet: os.kill(fleet.weak.pid, number)


def garble(fleet: Fleet) -> None:
    fleet.link.garbles = True


def slow_down(fleet: Fleet) -> None:
    fleet.link.delay_s = 0.1


def heal_link(fleet: Fleet) -> None:
    fleet.link.heal()


FAILURES = {
    "the engine's core is killed": Failure(kill("EngineCore"), 2.0, accepting=True),
    "the engine's worker is killed": Failure(kill("Worker"), 2.0, accepting=True),
    "the service is killed": Failure(signal_service(signal.SIGKILL), 2.0),
    "the service is stopped": Failure(
        signal_service(signal.SIGSTOP),
        STALL_S + NOTICED_WITHIN_S,
        heal=signal_service(signal.SIGCONT),
    ),
    "the network drops everything": Failure(
        lambda fleet: fleet.link.drop(), STALL_S + NOTICED_WITHIN_S, heal=heal_link
    ),
    "connections are closed": Failure(
        lambda fleet: fleet.link.close_all(), 2.0, heal=heal_link, noticed=False
    ),
    "connections are reset": Failure(
        lambda fleet: fleet.link.reset(), 2.0, heal=heal_link, noticed=False
    ),
    # An answer that had not begun is then a head without an end, which one waits for.
    "answers are garbage": Failure(garble, STALL_S + NOTICED_WITHIN_S, heal=heal_link),
    "the network is slow": Failure(slow_down, 120.0, heal=heal_link, noticed=False, hits=False),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(MODELS["demo"](), tmp_path_factory.mktemp("logs")) as fleet:
        yield fleet


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=180.0, limits=limits, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_each_stream_ends(fleet: Fleet, client: httpx.AsyncClient, failure: Failure) -> None:
    await fleet.wait_for_rotation(2, 30.0)
    whole = await whole_texts(client, fleet.url, tokens=TOKENS)
    try:
        await check_failure(fleet, client, failure, whole)
    finally:
        await back_in_rotation(fleet, failure)


async def check_failure(
    fleet: Fleet, client: httpx.AsyncClient, failure: Failure, whole: dict[str, str]
) -> None:
    streams = await streams_at_both(fleet, client)

    start = time.monotonic()
    failure.inflict(fleet)
    late = Streams(client, [fleet.url], LATE, tokens=TOKENS)
    if failure.noticed:
        left_after = await fleet.wait_for_rotation(1, NOTICED_WITHIN_S + SLACK_S)
        logger.info("out of rotation after %.2f s", left_after)
    endings = await streams.endings(180.0)
    hit = [ending for ending in endings if not ending.whole]
    last = max((ending.at - start for ending in hit), default=0.0)
    logger.info("%d of %d streams were hit, the last ended after %.2f s", len(hit), STREAMS, last)

    check_endings(endings, whole)
    assert last < failure.ends_within_s + SLACK_S
    if failure.hits:
        assert 0 < len(hit) < STREAMS
    else:
        assert not hit
    late_endings = await late.endings(180.0)
    assert failure.accepting or all(ending.whole for ending in late_endings), late_endings
    check_endings(late_endings, whole)


async def streams_at_both(fleet: Fleet, client: httpx.AsyncClient) -> Streams:
    """Begin the streams; once more if the replica that is to fail has none of them.

    Beside another engine, on two cores, it may have been too busy to answer a probe when they came.
    """
    for _ in range(3):
        streams = Streams(client, [fleet.url], STREAMS, tokens=TOKENS)
        await streams.wait_until_running(RUNNING)
        if await running(fleet.weak.url):
            return streams
        await streams.endings(180.0)
    raise AssertionError("the replica that is to fail gets no streams")


def check_endings(endings: list[Ending], whole: dict[str, str]) -> None:
    """No token is lost or doubled, and who got fewer was told once."""
    for ending in endings:
        assert ending.status == 200, ending
        assert ending.done, ending
        assert len(ending.errors) == (0 if ending.whole else 1), ending
        if ending.whole:
            assert ending.text == whole[ending.prompt]
        else:
            assert whole[ending.prompt].startswith(ending.text)


async def back_in_rotation(fleet: Fleet, failure: Failure) -> None:
    if failure.heal is None:
        await asyncio.to_thread(fleet.weak.wait_for_exit, 20.0)
        fleet.weak.start()
    else:
        failure.heal(fleet)
    await asyncio.to_thread(fleet.weak.wait_until_ready)
    fleet.put_engines_last()
    back_after = await fleet.wait_for_rotation(2, NOTICED_WITHIN_S + SLACK_S)
    logger.info("back in rotation %.2f s after it was ready", back_after)
    # Nobody waits for what was lost: it is not generated to its end.
    async with asyncio.timeout(5.0):
        while await running(fleet.weak.url):
            await asyncio.sleep(0.1)


async def running(url: str) -> float:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum([await metric(url, name) for name in names])


async def test_a_render_service_is_killed(
    tmp_path_factory: pytest.TempPathFactory, client: httpx.AsyncClient
) -> None:
    with Fleet(MODELS["demo"](), tmp_path_factory.mktemp("logs"), renders=2) as fleet:
        first, second = fleet.renders
        whole = await whole_texts(client, second.url, tokens=TOKENS)
        streams = Streams(client, [first.url, second.url], STREAMS, tokens=TOKENS)
        await streams.wait_until_running(RUNNING)
        first.kill()
        start = time.monotonic()
        endings = await streams.endings(180.0)
        lost, kept = endings[::2], endings[1::2]
        assert all(ending.broken for ending in lost if not ending.whole)
        assert any(ending.broken for ending in lost)
        assert max(ending.at for ending in lost) - start < SLACK_S
        assert all(ending.whole for ending in kept)
        check_endings(kept, whole)
        assert in_rotation(second.url) == 2
        async with asyncio.timeout(5.0):
            while await running(fleet.weak.url) + await running(fleet.other.url):
                await asyncio.sleep(0.1)
