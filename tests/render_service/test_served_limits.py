"""The whole render service in front of a scripted replica, on a socket, at its limits."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from render_service.settings import parse_render_args
from render_service.vllm_server import make_server
from shared_protocol.answer import TokenDelta
from shared_protocol.frames import encode_frame
from shared_protocol.startup.connection_limits import ConnectionLimits
from tests.checkpoints import checkpoint
from tests.processes import free_port
from tests.render_service.fake_generate import (
    Exchange,
    FakeGenerate,
    answer,
    eventually,
    hang_after,
)
from tests.render_service.scripted_pair import scripted_pair

pytestmark = [
    pytest.mark.anyio,
    # vLLM's own, of its field.
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),
]

MAX_MODEL_LEN = 1024
CHAT = {"model": "served", "messages": [{"role": "user", "content": "fox"}], "stream": True}
TOKEN = TokenDelta(token_ids=[7])
END = TokenDelta(token_ids=[7], finish_reason="stop")
STALL_S = 2.0
SLACK_S = 3.0
DEAF = 2


class Served:
    def __init__(self, replica: FakeGenerate, port: int) -> None:
        self.replica = replica
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=60.0,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        )

    async def stream(self, **changes: Any) -> str:
        """The text of a streamed answer, read by a client that costs little."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        content = json.dumps({**CHAT, **changes}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(content), content)
        )
        text = (await reader.read(-1)).decode()
        writer.close()
        return text


@pytest.fixture(scope="module")
def model() -> Path:
    return checkpoint("qwen3")


@asynccontextmanager
async def serving(
    model: Path, *flags: str, limits: ConnectionLimits | None = None, probe_s: float = 0.5
) -> AsyncIterator[Served]:
    port = free_port()
    given = [f"--model={model}", "--served-model-name=served", "--dtype=float32", *flags]
    async with scripted_pair(given, max_model_len=MAX_MODEL_LEN, probe_s=probe_s) as (app, replica):
        _, args = parse_render_args(
            [*given, "--generate-url=http://a:1", "--host=127.0.0.1", f"--port={port}"], {}
        )
        args.disable_uvicorn_access_log = True
        server = make_server(
            app,
            args,
            limits=limits or ConnectionLimits(read_s=120.0, stall_s=60.0),
            on_drain=lambda: None,
            grace_s=25.0,
            on_grace_over=lambda: None,
        )
        task = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        try:
            yield Served(replica, port)
        finally:
            server.should_exit = server.force_exit = True
            await task


def errors_of(text: str) -> int:
    return text.count('data: {"error"')


@contextmanager
def frozen(replica: FakeGenerate) -> Iterator[None]:
    thawed = replica.freeze()
    try:
        yield
    finally:
        thawed.set()


async def test_streams_of_a_silent_replica_end_with_one_error(model: Path) -> None:
    async with serving(model, f"--replica-stall-s={STALL_S}") as served:
        served.replica.behaviour = hang_after(TOKEN)
        tasks = [asyncio.create_task(served.stream()) for _ in range(32)]
        await eventually(lambda: len(served.replica.requests) == 32, within_s=20)
        whole = asyncio.create_task(ask(served, stream=False))
        await eventually(lambda: len(served.replica.requests) == 33, within_s=20)
        with frozen(served.replica):
            start = time.monotonic()
            texts = await asyncio.gather(*tasks)
            assert STALL_S < time.monotonic() - start < STALL_S + 1.0 + SLACK_S
            assert [errors_of(text) for text in texts] == [1] * 32
            assert all("data: [DONE]" in text for text in texts)
            assert (await whole).status_code == 500
            refused = await ask(served)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        await eventually(lambda: served.replica.disconnects == 33)


async def ask(served: Served, **changes: Any) -> httpx.Response:
    async with served.client() as client:
        return await client.post("/v1/chat/completions", json={**CHAT, **changes})


async def test_what_is_asked_before_it_is_known_is_unavailable(model: Path) -> None:
    async with serving(model) as served:
        with frozen(served.replica):
            answers = await asyncio.gather(*(ask(served) for _ in range(4)))
            assert [answer.status_code for answer in answers] == [503] * 4
        assert not served.replica.requests


async def test_keys_shares_and_what_everybody_may_see(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("filed\n")
    flags = ("--api-key=given", f"--api-key-file={file}", "--requests-per-minute-per-key=2")
    async with serving(model, *flags) as served:
        served.replica.behaviour = answer(TOKEN, END)
        body = {**CHAT, "stream": False}
        for key, statuses in {
            None: [401, 401],
            "other": [401],
            "given": [200, 200, 429],
            "filed": [200, 200, 429],
        }.items():
            async with served.client(key) as client:
                for status in statuses:
                    answered = await client.post("/v1/chat/completions", json=body)
                    assert answered.status_code == status, (key, answered.text)
        assert answered.headers["retry-after"] == "30"
        assert answered.json()["error"]["type"] == "RateLimitError"
        async with served.client() as client:
            for path in ("/health", "/ready", "/version", "/metrics"):
                assert (await client.get(path)).status_code == 200
            assert (await client.post("/invocations", json=body)).status_code == 401
            ready = await client.get("/ready")
    assert ready.json() == {"ready": True, "replicas": [{"ready": True, "outstanding": 0}]}
    assert "127.0.0.1" not in ready.text


async def test_addresses_are_shown_where_they_are_wanted(model: Path) -> None:
    async with serving(model, "--ready-addresses=on") as served, served.client() as client:
        (row,) = (await client.get("/ready")).json()["replicas"]
    assert row == {"url": served.replica.url, "ready": True, "outstanding": 0, "reason": None}


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/v1/chat/completions", {"n": 5}),
        ("/v1/completions", {"prompt": "fox", "n": 5}),
        ("/v1/completions", {"prompt": ["fox"] * 5, "stream": False}),
        ("/v1/completions", {"prompt": ["fox"] * 3, "n": 2, "stream": False}),
    ],
)
async def test_choices_are_limited(model: Path, path: str, changes: dict[str, Any]) -> None:
    async with (
        serving(model, "--max-generations-per-request=4") as served,
        served.client() as client,
    ):
        served.replica.behaviour = answer(TOKEN, END)
        answered = await client.post(path, json={**CHAT, **changes})
        assert answered.status_code == 400
        assert "at most 4 choices" in answered.json()["error"]["message"]
        fewer = {**CHAT, "prompt": "fox", "n": 4, "stream": False}
        assert (await client.post(path, json=fewer)).status_code == 200


async def test_a_client_that_does_not_read_takes_little_and_is_cut_off(model: Path) -> None:
    """The replica has far more for it than the service is to keep."""

    async def pour(exchange: Exchange) -> None:
        await exchange.start()
        frames = encode_frame(TOKEN) * 1000
        while not exchange.client_left.is_set():
            await exchange.body(frames)

    limits = ConnectionLimits(read_s=120.0, stall_s=3.0)
    # The replica shares this process's interpreter, and what it pours keeps it from its probes.
    async with serving(model, limits=limits, probe_s=10.0) as served:
        served.replica.behaviour = answer(TOKEN, END)
        await served.stream()
        served.replica.behaviour = pour
        memory = psutil.Process().memory_info
        before = memory().rss
        readers = [await deaf_client(served.port) for _ in range(DEAF)]
        await eventually(lambda: len(served.replica.requests) == 1 + DEAF)
        served.replica.behaviour = answer(TOKEN, END)
        largest = 0
        others = 0
        deadline = time.monotonic() + 30
        while served.replica.disconnects < DEAF and time.monotonic() < deadline:
            text = await served.stream()
            assert "[DONE]" in text
            others += 1
            largest = max(largest, memory().rss - before)
            await asyncio.sleep(0.05)
        assert served.replica.disconnects == DEAF
        assert others > 1
        assert largest < 200 * 2**20
        for _, writer in readers:
            writer.close()


async def deaf_client(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    content = json.dumps({**CHAT, "ignore_eos": True}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


def tokens(count: int) -> Sequence[TokenDelta]:
    return [TOKEN] * (count - 1) + [END]


@pytest.mark.slow
async def test_512_streams_at_a_time(model: Path) -> None:
    async with serving(model) as served:
        served.replica.behaviour = answer(*tokens(8), delay_s=0.2)
        texts = await asyncio.gather(*(served.stream() for _ in range(512)))
        assert [text[:300] for text in texts if not text.startswith("HTTP/1.1 200")] == []
        assert len(served.replica.requests) == 512
    assert all(text.startswith("HTTP/1.1 200") for text in texts)
    assert sum(errors_of(text) for text in texts) == 0
    assert all(text.count('"content":') >= 8 and "[DONE]" in text for text in texts)
