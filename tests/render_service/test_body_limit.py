"""The body limit around any application, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from render_service.body_limit import BodyLimit
from shared_protocol.startup.body_memory import BodyMemory
from tests.processes import free_port
from tests.served import served

pytestmark = pytest.mark.anyio

LIMIT = 1000
# Of all bodies together.
MEMORY = 1500


async def count_body(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    port = free_port()
    async with served(uvicorn.Config(app, port=port, lifespan="off", log_level="error")):
        yield port


@pytest.fixture
async def port() -> AsyncIterator[int]:
    memory = BodyMemory(most=MEMORY, retry_after_s=1)
    async with serving(BodyLimit(count_body, max_bytes=LIMIT, memory=memory)) as port:
        yield port


async def post(port: int, head: bytes, *pieces: bytes) -> tuple[int, bytes]:
    """Send a request piece by piece and return the status and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: test\r\n" + head + b"\r\n")
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
    length = next(
        int(line.partition(b":")[2])
        for line in answer.splitlines()
        if line.lower().startswith(b"content-length")
    )
    body = await reader.readexactly(length)
    writer.close()
    return int(answer.split()[1]), body


def chunk(size: int) -> bytes:
    return b"%x\r\n" % size + b"x" * size + b"\r\n"


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error


async def test_a_body_of_the_limit_is_taken(port: int) -> None:
    assert await post(port, b"Content-Length: 1000\r\n", b"x" * LIMIT) == (200, b"1000")


async def test_an_announced_excess_is_refused_unread(port: int) -> None:
    status, body = await post(port, b"Content-Length: 1001\r\n")
    assert status == 413
    assert error_of(body)["code"] == 413


async def test_an_excess_that_comes_is_refused_while_it_comes(port: int) -> None:
    status, body = await post(port, b"Transfer-Encoding: chunked\r\n", chunk(600), chunk(600))
    assert status == 413
    assert error_of(body)["type"] == "PayloadTooLargeError"


async def test_the_answer_is_seen_by_a_client_that_is_still_sending(port: int) -> None:
    """Its connection must not be reset on the bytes that nobody has read."""
    for _ in range(20):
        pieces = [chunk(2**16)] * 40
        status, _ = await post(port, b"Transfer-Encoding: chunked\r\n", *pieces)
        assert status == 413


@asynccontextmanager
async def half_sent(port: int, size: int) -> AsyncIterator[None]:
    """A request of which `size` bytes have come and more will."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(size)
    )
    await asyncio.sleep(0.2)
    yield
    writer.close()
    await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"Content-Length: 800\r\n", b""), (b"Transfer-Encoding: chunked\r\n", chunk(800))],
    ids=["announced", "comes"],
)
async def test_what_has_no_memory_left_is_refused_until_there_is_some(
    port: int, head: bytes, piece: bytes
) -> None:
    async with half_sent(port, 800):
        status, body = await post(port, head, piece)
        assert status == 503
        assert error_of(body)["message"].endswith(f"take the {MEMORY} bytes there are")
        assert await post(port, b"Content-Length: 700\r\n", b"x" * 700) == (200, b"700")
    assert await post(port, b"Content-Length: 1000\r\n", b"x" * LIMIT) == (200, b"1000")
