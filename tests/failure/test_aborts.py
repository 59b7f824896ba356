"""A client that leaves, or a stop string, frees the engine at once.

The model is one whose steps take tens of milliseconds, as a GPU's do: the tiny ones have finished
before anyone could leave.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import SERVED_NAME, Duo
from tests.failure.engine_metrics import metric

pytestmark = [
    pytest.mark.engine,
    # A second is short on a machine that does other things besides.
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.parametrize("duo", ["demo"], indirect=True),
]

CHAT: dict[str, Any] = {
    "model": SERVED_NAME,
    "messages": [{"role": "user", "content": "the quick brown fox"}],
    "temperature": 0.0,
    "max_tokens": 900,
    "ignore_eos": True,
}
LONG = [{"role": "user", "content": "fox " * 800}]


@pytest.fixture
async def client(duo: Duo) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=duo.pair, timeout=120.0, trust_env=False) as client:
        yield client


async def busy(duo: Duo) -> float:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum([await metric(duo.generate, name) for name in names])


async def idle_within(duo: Duo, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while await busy(duo):
            await asyncio.sleep(0.05)


WAYS_TO_LEAVE: dict[str, dict[str, Any]] = {
    "waiting for a plain answer": {},
    "in a stream": {"stream": True},
    "of several choices": {"n": 3, "temperature": 0.8, "stream": True},
    "in a prefill": {"messages": LONG, "max_tokens": 100},
}


@pytest.mark.parametrize("options", WAYS_TO_LEAVE.values(), ids=WAYS_TO_LEAVE)
async def test_a_client_that_leaves_frees_the_engine(
    duo: Duo, client: httpx.AsyncClient, options: dict[str, Any]
) -> None:
    task = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT | options))
    async with asyncio.timeout(10.0):
        while not await busy(duo):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await idle_within(duo, 1.0)


async def test_clients_that_leave_the_queue(duo: Duo, client: httpx.AsyncClient) -> None:
    """More requests than the engine runs at once: most of them wait."""
    tasks = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(24)]
    async with asyncio.timeout(10.0):
        while await busy(duo) < 20:
            await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await idle_within(duo, 1.0)


ATTEMPTS = 3
STEPS_OF_LATENCY = 2


async def test_a_stop_string_ends_the_generation_at_once(
    duo: Duo, client: httpx.AsyncClient
) -> None:
    request = CHAT | {"max_tokens": 60}
    text = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0][
        "message"
    ]["content"]
    # A string of several letters, some way in: it lies across tokens.
    stop = text[len(text) // 3 : len(text) // 3 + 4]
    surplus = []
    for _ in range(ATTEMPTS):
        before = await metric(duo.generate, "vllm:generation_tokens_total")
        request = CHAT | {"stop": [stop], "return_token_ids": True}
        answer = await client.post("/v1/chat/completions", json=request)
        choice = answer.json()["choices"][0]
        assert choice["message"]["content"] == text[: text.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        await idle_within(duo, 1.0)
        generated = await metric(duo.generate, "vllm:generation_tokens_total") - before
        surplus.append(generated - len(choice["token_ids"]))
    assert max(surplus) <= STEPS_OF_LATENCY, surplus
