"""What the render service counts, through the whole application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from shared_protocol.answer import TokenDelta
from tests.checkpoints import checkpoint
from tests.render_service.fake_generate import (
    FIRST,
    FakeGenerate,
    answer,
    eventually,
    refuse,
    reset_after,
)
from tests.render_service.scripted_pair import scripted_pair

pytestmark = [
    pytest.mark.anyio,
    # vLLM's own, of its field.
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),
]

PATH = "/v1/chat/completions"
CHAT = {"model": "served", "messages": [{"role": "user", "content": "fox"}]}
END = TokenDelta(token_ids=[7], finish_reason="stop")
SLOW = answer(FIRST, END, delay_s=0.5)


@pytest.fixture(scope="module")
def model() -> Path:
    return checkpoint("qwen3")


@pytest.fixture(autouse=True)
def first_application() -> None:
    """As in a process of its own: vLLM's counts of requests are of the first application."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith("http_re"):
            REGISTRY.unregister(collector)


@asynccontextmanager
async def serving(
    model: Path, *flags: str
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeGenerate]]:
    given = [f"--model={model}", "--served-model-name=served", "--dtype=float32", *flags]
    async with scripted_pair(given, max_model_len=1024, probe_s=0.1) as (app, replica):
        replica.behaviour = answer(END)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://render") as client:
            yield client, replica


async def samples(client: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """By name, and by the values of labels as they come."""
    text = (await client.get("/metrics")).text
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def ask(client: httpx.AsyncClient, **changes: Any) -> int:
    return (await client.post(PATH, json={**CHAT, **changes})).status_code


async def test_requests_are_counted(model: Path) -> None:
    async with serving(model) as (client, _):
        assert [await ask(client) for _ in range(3)] == [200] * 3
        found = await samples(client)
    assert found["http_request_duration_highr_seconds_count", ""] == 3
    assert found["http_requests_total", f"{PATH} POST 2xx"] == 3


async def test_the_pool(model: Path) -> None:
    async with serving(model) as (client, replica):
        replica.behaviour = SLOW
        running = asyncio.create_task(ask(client))
        await eventually(lambda: bool(replica.requests))
        found = await samples(client)
        assert await running == 200
    assert found["tandem_render_replicas_known", ""] == 1
    assert found["tandem_render_replicas_ready", ""] == 1
    assert found["tandem_render_outstanding_requests", "ready"] == 1
    assert found["tandem_render_outstanding_requests", "out"] == 0
    assert found["tandem_render_body_bytes", ""] > len("fox")
    assert not any("127.0.0.1" in labels for _, labels in found)


async def test_addresses_where_they_are_wanted(model: Path) -> None:
    async with serving(model, "--ready-addresses=on") as (client, replica):
        found = await samples(client)
    assert found["tandem_render_replica_ready", replica.url] == 1
    assert found["tandem_render_replica_outstanding_requests", replica.url] == 0


async def test_refusals(model: Path) -> None:
    flags = ("--max-concurrent-requests=2", "--max-body-bytes=200", "--max-bodies-bytes=220")
    keys = ("--api-key=first", "--max-requests-per-key=1")
    async with serving(model, *flags, *keys) as (client, replica):
        client.headers["authorization"] = "Bearer first"
        replica.behaviour = SLOW
        running = asyncio.create_task(ask(client))
        await eventually(lambda: bool(replica.requests))
        assert await ask(client) == 429
        assert await ask(client, user="x" * 110) == 503
        assert await running == 200
        replica.behaviour = refuse(503, "busy")
        # The client is told so with its status, or has it held until it is known.
        assert [await ask(client, stream=stream) for stream in (False, True)] == [503, 503]
        found = await samples(client)
    assert found["tandem_render_refusals_total", "key_limits"] == 1
    assert found["tandem_render_refusals_total", "body_memory"] == 1
    assert found["tandem_render_refusals_total", "no_replica"] == 2
    assert found["tandem_render_refusals_total", "concurrency"] == 0


async def test_too_many_requests_at_a_time(model: Path) -> None:
    async with serving(model, "--max-concurrent-requests=1") as (client, replica):
        replica.behaviour = SLOW
        running = asyncio.create_task(ask(client))
        await eventually(lambda: bool(replica.requests))
        assert await ask(client) == 503
        found = await samples(client)
        assert await running == 200
    assert found["tandem_render_refusals_total", "concurrency"] == 1


async def test_lost_answers(model: Path) -> None:
    async with serving(model) as (client, replica):
        replica.behaviour = refuse(500, "the engine died")
        assert await ask(client) == 500
        replica.behaviour = reset_after(FIRST)
        assert await ask(client) == 500
        found = await samples(client)
    assert found["tandem_render_requests_lost_total", "failed"] == 1
    assert found["tandem_render_requests_lost_total", "error"] == 1
    assert found["tandem_render_requests_lost_total", "stalled"] == 0


async def test_beside_files_of_several_processes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the variable is set, vLLM shows what files hold."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    async with serving(model) as (client, _), serving(model) as (other, _):
        for each in (client, other):
            assert (await samples(each))["tandem_render_replicas_ready", ""] == 1
