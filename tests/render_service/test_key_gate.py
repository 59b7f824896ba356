"""Who may ask for what, and how much of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from render_service.client_keys import client_keys
from render_service.concurrency_limit import ConcurrencyLimit
from render_service.generation_limit import (
    GenerationLimit,
    begin_generations,
    check_generations,
)
from render_service.key_gate import KeyGate, KeyLimits
from render_service.settings import parse_render_args
from shared_protocol.errors import InvalidRequest
from shared_protocol.keys import KeyRing

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


class Held:
    """An application that answers once it is released."""

    def __init__(self) -> None:
        self.running = 0
        self.released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Answer:
    def __init__(self, sent: list[Message]) -> None:
        self.status: int = sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.body: bytes = sent[1]["body"]

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def scope_of(path: str, key: str | None, method: str, kind: str) -> Scope:
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    return {"type": kind, "method": method, "path": path, "headers": headers}


async def messages_of(app: ASGIApp, scope: Scope) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read before it is known who asks")

    await app(scope, receive, send)
    return sent


async def ask(
    app: ASGIApp, path: str = CHAT, *, key: str | None = "first", method: str = "POST"
) -> Answer:
    return Answer(await messages_of(app, scope_of(path, key, method, "http")))


async def test_a_key_of_other_characters_than_asciis(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("schlüssel\n", encoding="utf-8")
    settings, args = parse_render_args(
        ["--model=m", "--generate-url=http://generate:8100", f"--api-key-file={file}"], {}
    )
    keys = client_keys(settings, args)
    assert keys is not None
    gated = KeyGate(hello, keys=keys, limits=KeyLimits())
    assert (await ask(gated, key="schlüssel")).status == 200
    assert (await ask(gated, key="schlussel")).status == 401


def gate(app: ASGIApp = hello, **limits: int) -> KeyGate:
    return KeyGate(app, keys=KeyRing(["first", "second"]), limits=KeyLimits(**limits))


# Keys


async def test_without_a_key() -> None:
    answer = await ask(gate(), key=None)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.error == {
        "message": "A valid key is required",
        "type": "AuthenticationError",
        "param": None,
        "code": 401,
    }
    assert (await ask(gate(), key="third")).status == 401
    assert (await ask(gate(), key="first")).status == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models", "/v1/embeddings", "/v2/rerank", "/cohere/v2/chat"),
        *("/inference/v1/generate", "/invocations", "/pooling", "/classify", "/score", "/rerank"),
        *("/generative_scoring", "/whatever/comes", "/v1/../health", "/health/", "//health"),
    ],
)
async def test_what_needs_a_key(path: str) -> None:
    assert (await ask(gate(), path, key=None)).status == 401


@pytest.mark.parametrize(
    "path",
    [
        *("/health", "/ready", "/ping", "/version", "/metrics", "/load", "/docs", "/openapi.json"),
        *("/detokenize", "/tokenizer_info", "/static/a.css"),
    ],
)
async def test_what_is_open(path: str) -> None:
    assert (await ask(gate(), path, key=None)).status == 200


async def test_a_prefix_changes_nothing() -> None:
    for path, status in (("/prefix/v1/models", 401), ("/prefix/health", 200)):
        scope = {**scope_of(path, None, "GET", "http"), "root_path": "/prefix"}
        assert Answer(await messages_of(gate(), scope)).status == status


async def test_a_preflight_has_no_key() -> None:
    assert (await ask(gate(), key=None, method="OPTIONS")).status == 200


async def test_a_web_socket_needs_one() -> None:
    sent = await messages_of(gate(), scope_of("/v1/realtime", None, "GET", "websocket"))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# Shares


async def test_one_key_has_its_requests_at_a_time() -> None:
    held = Held()
    app = gate(held, max_requests=2)
    first = [asyncio.create_task(ask(app)) for _ in range(2)]
    await asyncio.sleep(0)
    refused = await ask(app)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert refused.error["type"] == "RateLimitError"
    assert refused.error["code"] == 429
    second = asyncio.create_task(ask(app, key="second"))
    await asyncio.sleep(0)
    assert held.running == 3
    held.released.set()
    assert [(await task).status for task in (*first, second)] == [200] * 3
    assert (await ask(app)).status == 200


async def test_a_request_that_fails_is_over() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    app = gate(fail, max_requests=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await ask(app)


async def test_one_key_has_its_requests_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("render_service.key_gate.time.monotonic", lambda: now)
    app = gate(requests_per_minute=4)
    statuses = [(await ask(app)).status for _ in range(5)]
    assert statuses == [200] * 4 + [429]
    assert (await ask(app, key="second")).status == 200
    now += 5.0
    refused = await ask(app)
    assert (refused.status, refused.headers["retry-after"]) == (429, "10")
    now += 10.0
    assert [(await ask(app)).status for _ in range(2)] == [200, 429]
    now += 3600.0
    assert [(await ask(app)).status for _ in range(5)] == [200] * 4 + [429]


async def test_what_is_open_uses_no_share() -> None:
    app = gate(requests_per_minute=1)
    assert [(await ask(app, "/health")).status for _ in range(3)] == [200] * 3
    assert (await ask(app)).status == 200


# All requests together


async def test_more_than_are_answered_at_a_time() -> None:
    held = Held()
    app = ConcurrencyLimit(held, max_requests=2)
    tasks = [asyncio.create_task(ask(app)) for _ in range(2)]
    await asyncio.sleep(0)
    refused = await ask(app)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.error["type"] == "ServiceUnavailableError"
    health = asyncio.create_task(ask(app, "/health"))
    await asyncio.sleep(0)
    assert held.running == 3
    sent = await messages_of(app, scope_of("/v1/realtime", None, "GET", "websocket"))
    assert sent == [{"type": "websocket.close", "code": 1013}]
    held.released.set()
    assert [(await task).status for task in (*tasks, health)] == [200] * 3
    assert (await ask(app)).status == 200


# One request


async def test_what_one_request_may_have_generated() -> None:
    async def generate(scope: Scope, receive: Receive, send: Send) -> None:
        check_generations(4)
        with pytest.raises(InvalidRequest, match="at most 4 choices"):
            check_generations(5)
        # Begun by tasks that are the request's, as vLLM's are.
        await asyncio.gather(*(asyncio.create_task(begin(2)) for _ in range(2)))
        with pytest.raises(InvalidRequest):
            begin_generations(1)
        await hello(scope, receive, send)

    async def begin(count: int) -> None:
        begin_generations(count)

    app = GenerationLimit(generate, max_generations=4)
    for _ in range(2):
        assert (await ask(app)).status == 200


async def test_without_a_request_there_is_no_limit() -> None:
    check_generations(10**6)
    begin_generations(10**6)
