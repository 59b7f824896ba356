"""The pair answers what `vllm serve` answers, token for token."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import Duo
from tests.parity.answers import Answer, ask, differences, has_tie
from tests.parity.chats import KINDS, chat_requests

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

REQUESTS = 120
CONCURRENCY = 4


async def ask_all(url: str, requests: list[dict[str, Any]]) -> list[Answer]:
    slots = asyncio.Semaphore(CONCURRENCY)

    async def ask_one(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
        async with slots:
            return await ask(client, url, request)

    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        return await asyncio.gather(*(ask_one(client, request) for request in requests))


async def test_pair_equals_monolith(duo: Duo) -> None:
    requests = list(chat_requests(20261130, REQUESTS, hidden_size=duo.hidden_size))
    pair = await ask_all(duo.pair, requests)
    monolith = await ask_all(duo.monolith, requests)

    assert all(answer.status == 200 and answer.error is None for answer in monolith)
    found = [
        f"request {index} ({KINDS[index % len(KINDS)]}): {line}"
        for index, answers in enumerate(zip(pair, monolith, strict=True))
        for line in differences(*answers)
    ]
    assert not found, "\n".join(found[:20])
    # Those are compared up to the tie only; more would mean that the test sees little.
    assert sum(has_tie(answer) for answer in monolith) <= REQUESTS // 10
    # A model that says the same to everything would prove nothing.
    assert len({tuple(answer.token_ids[:4]) for answer in pair}) > REQUESTS // 6
