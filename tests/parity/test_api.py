"""Every endpoint and option: the pair's whole answer is the monolith's, streamed or not."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import Duo
from tests.parity.answers import LOGPROB_TOLERANCE
from tests.parity.api_requests import ApiRequest, api_requests
from tests.parity.folding import folded, plain_as_folded, same, settled

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.slow]

REQUESTS = {"gemma3": 170, "qwen2_vl": 170, "demo": 70}
CONCURRENCY = 4
STREAMED = ("/v1/chat/completions", "/v1/completions")
# vLLM streams the first in another shape, and refuses to stream the second.
NOT_STREAMED = {"echo", "prompt_logprobs"}


async def send_all(url: str, requests: list[ApiRequest], **changes: Any) -> list[httpx.Response]:
    slots = asyncio.Semaphore(CONCURRENCY)

    async def send(client: httpx.AsyncClient, request: ApiRequest) -> httpx.Response:
        async with slots:
            return await client.post(url + request.path, json=request.body | changes)

    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        return await asyncio.gather(*(send(client, request) for request in requests))


def body_of(response: httpx.Response) -> Any:
    if response.headers.get("content-type", "").startswith("application/json"):
        return settled(response.json())
    return response.text


def difference(ours: httpx.Response, theirs: httpx.Response) -> str | None:
    pair, monolith = body_of(ours), body_of(theirs)
    if ours.status_code == theirs.status_code and same(pair, monolith, LOGPROB_TOLERANCE):
        return None
    if _same_refusal(ours, theirs):
        return None
    return f"\n  pair {ours.status_code} {pair}\n  monolith {theirs.status_code} {monolith}"


def _same_refusal(ours: httpx.Response, theirs: httpx.Response) -> bool:
    """The pair names the field also where the monolith names none."""
    if ours.status_code != theirs.status_code or ours.status_code < 400:
        return False
    pair, monolith = ours.json().get("error"), theirs.json().get("error")
    return bool(monolith and monolith["param"] is None and pair["type"] == monolith["type"])


async def test_the_whole_answer_is_the_monoliths(duo: Duo) -> None:
    requests = list(api_requests(20261130, REQUESTS[duo.name]))
    ours = await send_all(duo.pair, requests)
    theirs = await send_all(duo.monolith, requests)
    assert sum(response.status_code == 200 for response in theirs) > len(requests) // 2
    assert sum(response.status_code >= 400 for response in theirs) > len(requests) // 50
    found = [
        f"{request}: {line}"
        for request, pair, monolith in zip(requests, ours, theirs, strict=True)
        if (line := difference(pair, monolith)) is not None
    ]
    assert not found, f"{len(found)} of {len(requests)}\n" + "\n".join(found[:10])


async def test_streamed_answers_add_up_to_the_plain_ones(duo: Duo) -> None:
    requests = [
        request
        for request in api_requests(42, REQUESTS[duo.name] // 2)
        if request.path in STREAMED and not request.body.keys() & NOT_STREAMED
    ]
    plain = await send_all(duo.pair, requests)
    streamed = await send_all(
        duo.pair, requests, stream=True, stream_options={"include_usage": True}
    )
    found = [
        f"{request}:\n  plain {expected}\n  streamed {got}"
        for request, whole, events in zip(requests, plain, streamed, strict=True)
        if whole.status_code == 200
        and not same(
            got := folded(events.text),
            expected := plain_as_folded(whole.json()),
            LOGPROB_TOLERANCE,
        )
    ]
    assert not found, f"{len(found)} of {len(requests)}\n" + "\n".join(found[:5])
