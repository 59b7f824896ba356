"""Two real replicas: load is shared, and the loss of one or both is answered as it should be."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.conftest import FLAGS, SERVED_NAME
from tests.pair import Pair

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

CHAT = {
    "model": SERVED_NAME,
    "messages": [{"role": "user", "content": "the quick brown fox"}],
    "temperature": 0.0,
    "max_tokens": 8,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("logs")
    with Pair(checkpoint("gemma3"), logs=logs, replicas=2, flags=FLAGS) as pair:
        yield pair


@pytest.fixture
async def client(pair: Pair) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=pair.url, timeout=120.0, trust_env=False) as client:
        yield client


async def chat(client: httpx.AsyncClient, **options: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=CHAT | options)


async def finished_requests(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        metrics = (await client.get(f"{url}/metrics")).text
    return sum(
        int(float(line.split()[-1]))
        for line in metrics.splitlines()
        if line.startswith("vllm:request_success_total")
    )


async def wait_for(condition: Callable[[], bool], timeout_s: float) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s
        await asyncio.sleep(0.05)
    return time.monotonic() - start


async def test_load_is_shared_then_one_and_both_are_lost(
    pair: Pair, client: httpx.AsyncClient
) -> None:
    """One test, as each step needs the state that the one before it left."""
    first, second = pair.replicas
    await wait_for(lambda: ready_replicas(pair) == 2, timeout_s=10.0)
    answers = await asyncio.gather(*(chat(client) for _ in range(16)))
    assert [answer.status_code for answer in answers] == [200] * 16
    counts = [await finished_requests(replica.url) for replica in pair.replicas]
    assert sum(counts) == 16
    assert min(counts) >= 4

    await lose_with_streams(client, first.pid)
    # Whatever was not accepted goes to the other one.
    answers = await asyncio.gather(*(chat(client) for _ in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8

    os.killpg(second.pid, signal.SIGKILL)
    assert await wait_for(lambda: not pair.render.is_ready(), timeout_s=5.0) < 5.0
    refused = await chat(client)
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"]["code"] == 503


def ready_replicas(pair: Pair) -> int:
    replicas = httpx.get(f"{pair.url}/ready", trust_env=False).json()["replicas"]
    return sum(replica["ready"] for replica in replicas)


async def lose_with_streams(client: httpx.AsyncClient, pid: int) -> None:
    """Kill a replica under running streams: each ends in [DONE], those it had with one error."""
    tasks = [
        asyncio.create_task(chat(client, stream=True, max_tokens=400, ignore_eos=True))
        for _ in range(6)
    ]
    await asyncio.sleep(0.7)
    os.killpg(pid, signal.SIGKILL)
    texts = [(await task).text for task in tasks]
    assert all(text.rstrip().endswith("data: [DONE]") for text in texts)
    errors = [text.count('"error"') for text in texts]
    assert max(errors) == 1
    assert 0 < sum(errors) < 6
