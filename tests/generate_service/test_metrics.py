"""What the generate service says of itself, beside what vLLM says of the engine."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from generate_service.vllm_request import EngineRequest
from shared_protocol.answer import TokenDelta
from tests.generate_service.fake_engine import forever, three_tokens
from tests.generate_service.fake_service import PATH, REQUEST, serving, until

pytestmark = pytest.mark.anyio


async def samples(client: httpx.AsyncClient) -> dict[str, float]:
    """Those of the service by name, or by name and status."""
    text = (await client.get("/metrics")).text
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("tandem_")
    }


async def test_requests_and_the_bytes_of_their_bodies() -> None:
    async with serving(forever) as (client, engine):
        running = asyncio.create_task(client.post(PATH, json=REQUEST))
        await until(lambda: engine.requests)
        found = await samples(client)
        running.cancel()
    assert found["tandem_generate_requests"] == 1
    # httpx writes JSON without spaces.
    assert found["tandem_generate_body_bytes"] == len(json.dumps(REQUEST, separators=(",", ":")))


async def test_refusals() -> None:
    async with serving(three_tokens, generate_api_key="secret", max_body_bytes=100) as (client, _):
        assert (await client.post(PATH, json=REQUEST)).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        assert (await client.post(PATH, json=REQUEST)).status_code == 200
        assert (await client.post(PATH, json={})).status_code == 400
        assert (await client.post(PATH, content=b"x" * 101)).status_code == 413
        found = await samples(client)
    assert found == {
        "tandem_generate_requests": 0,
        "tandem_generate_body_bytes": 0,
        "tandem_generate_held_item_bytes": 0,
        "tandem_generate_item_references_total no": 0,
        "tandem_generate_item_references_total yes": 0,
        "tandem_generate_refusals_total 400": 1,
        "tandem_generate_refusals_total 401": 1,
        "tandem_generate_refusals_total 413": 1,
        "tandem_generate_refusals_total 500": 0,
        "tandem_generate_refusals_total 503": 0,
    }


async def test_a_fault_of_the_service_is_counted() -> None:
    def broken(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
        raise RuntimeError("as no engine should")

    async with serving(broken) as (client, _):
        assert (await client.post(PATH, json=REQUEST)).status_code == 500
        assert (await samples(client))["tandem_generate_refusals_total 500"] == 1


async def test_two_applications_of_one_process() -> None:
    async with serving(three_tokens) as (first, _), serving(three_tokens) as (second, _):
        assert (await first.post(PATH, json={})).status_code == 400
        counted = [
            (await samples(client))["tandem_generate_refusals_total 400"]
            for client in (first, second)
        ]
    assert counted == [1, 0]
