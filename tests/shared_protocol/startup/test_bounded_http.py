"""Clients that send or read too slowly, or send too much of a head, on a real socket.

Of the service that takes both parsers; see also `tests/generate_service/test_connections.py`.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import connect

from shared_protocol.startup.bounded_http import BoundedH11, BoundedHttpTools
from shared_protocol.startup.connection_limits import ConnectionLimits
from tests.processes import free_port
from tests.render_service.fake_generate import eventually
from tests.served import served

pytestmark = pytest.mark.anyio

READ_S = 0.5
STALL_S = 0.5
SLACK_S = 1.0
LIMITS = ConnectionLimits(read_s=READ_S, stall_s=STALL_S, max_head_bytes=10_000)
HEAD = b"GET / HTTP/1.1\r\nHost: test\r\n"
PIECE = b"x" * 65_536

POST = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"

Parser = Callable[..., asyncio.Protocol]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=[BoundedH11, BoundedHttpTools], ids=["h11", "httptools"])
def parser(request: pytest.FixtureRequest) -> Parser:
    chosen: Parser = request.param
    return chosen


class Endless:
    """An application that writes until its client has left.

    Attributes:
        written: how many bytes.
        left: whether it was told that the client has left.
    """

    def __init__(self) -> None:
        self.written = 0
        self.left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        listener = asyncio.create_task(self._listen(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.left:
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.written += len(PIECE)
            await asyncio.sleep(0)
        await listener

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left = True


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hello")(scope, receive, send)


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    await Request(scope, receive).body()
    await hello(scope, receive, send)


@asynccontextmanager
async def serving(app: ASGIApp, parser: Parser) -> AsyncIterator[int]:
    port = free_port()
    config = uvicorn.Config(
        app,
        port=port,
        http=partial(parser, limits=LIMITS),  # type: ignore[arg-type]
        lifespan="off",
        log_level="critical",
        timeout_keep_alive=10,
    )
    async with served(config):
        yield port


@asynccontextmanager
async def connection(
    port: int, limit: int = 2**16
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def closed_after(reader: asyncio.StreamReader) -> float:
    """How long the server keeps the connection, of which everything is read."""
    start = time.monotonic()
    try:
        async with asyncio.timeout(5):
            while await reader.read(1000):
                pass
    except ConnectionError:
        pass
    return time.monotonic() - start


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD[:3]], ids=["nothing", "no end", "a part"])
async def test_a_head_has_its_time(parser: Parser, sent: bytes) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(sent)
        assert READ_S / 2 < await closed_after(reader) < READ_S + SLACK_S


async def test_a_head_that_dribbles_has_no_more(parser: Parser) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):

        async def dribble() -> None:
            writer.write(HEAD)
            while True:
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.05)

        dribbling = asyncio.create_task(dribble())
        assert await closed_after(reader) < READ_S + SLACK_S
        dribbling.cancel()


async def test_the_head_of_a_later_request_has_its_time_too(parser: Parser) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            # Idling is not sending slowly.
            await asyncio.sleep(1.5 * READ_S)
        writer.write(HEAD)
        assert await closed_after(reader) < READ_S + SLACK_S


async def test_an_answer_may_take_longer_than_a_head(parser: Parser) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(2 * READ_S)
        await hello(scope, receive, send)

    async with (
        serving(slow, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def status_of(reader: asyncio.StreamReader, within_s: float = 5.0) -> int | None:
    """The status of the error with which the connection ends; None if it ends without."""
    async with asyncio.timeout(within_s):
        answer = await reader.read()
    if not answer:
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    code: int = json.loads(body)["error"]["code"]
    assert int(head.split()[1]) == code
    return code


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", None), (b"G", 408), (HEAD, 408), (POST % 9, 408), (POST % 9 + b"x", 408)],
    ids=["nothing", "a part of a head", "a head", "no body", "a part of a body"],
)
async def test_who_is_late_is_told_so(parser: Parser, sent: bytes, status: int | None) -> None:
    async with (
        serving(read_all, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(sent)
        assert await status_of(reader) == status


async def test_a_body_that_dribbles_has_no_more_time(parser: Parser) -> None:
    async with (
        serving(read_all, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(POST % 1000)
        answered = asyncio.create_task(status_of(reader))
        async with asyncio.timeout(READ_S + SLACK_S):
            while not answered.done():
                writer.write(b"x")
                await asyncio.sleep(0.02)
        assert await answered == 408


async def test_each_request_has_its_own_time(parser: Parser) -> None:
    async with (
        serving(read_all, parser) as port,
        connection(port) as (reader, writer),
    ):
        for _ in range(3):
            writer.write(POST % 9)
            await asyncio.sleep(READ_S * 0.7)
            writer.write(b"x" * 9)
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def test_the_time_of_a_request_that_was_answered_unread_is_not_that_of_the_next(
    parser: Parser,
) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):
        for _ in range(3):
            writer.write(POST % 9)
            await reader.readuntil(b"hello")
            await asyncio.sleep(READ_S * 0.7)
            writer.write(b"x" * 9)


async def test_an_application_that_does_not_read_is_not_the_clients_fault(parser: Parser) -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(2 * READ_S)
        await read_all(scope, receive, send)

    async with (
        serving(late, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(POST % 1_000_000)
        writer.write(b"x" * 1_000_000)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def test_blank_lines_keep_no_connection(parser: Parser) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(HEAD + b"\r\n")
        await reader.readuntil(b"hello")
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(READ_S + SLACK_S):
            while not ended.done():
                writer.write(b"\r\n")
                await asyncio.sleep(0.05)
        with suppress(ConnectionError):
            await ended


@pytest.mark.parametrize(
    "lines", [b"x: y\r\n" * 100, b"x" * 1000], ids=["many headers", "a long one"]
)
async def test_a_head_has_its_size(parser: Parser, lines: bytes) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(HEAD)
        answered = asyncio.create_task(status_of(reader))
        sent = 0
        while not answered.done() and sent < 4 * LIMITS.max_head_bytes:
            writer.write(lines)
            sent += len(lines)
            await asyncio.sleep(0)
        assert await answered == 431
        assert sent > LIMITS.max_head_bytes / 2


async def test_what_is_no_http_is_refused(parser: Parser) -> None:
    async with (
        serving(hello, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(b"\x16\x03\x01\x02\x00\r\n\r\n")
        assert await status_of(reader) == 400


async def test_a_refusal_ends_the_request_and_is_nothing_to_log(
    parser: Parser, caplog: pytest.LogCaptureFixture
) -> None:
    left = asyncio.Event()

    async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()
        await hello(scope, receive, send)

    async with (
        serving(stubborn, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(POST % 9)
        assert await status_of(reader) == 408
        assert left.is_set()
    assert not caplog.records


async def test_what_follows_a_stream_does_not_get_into_it(parser: Parser) -> None:
    endless = Endless()
    async with (
        serving(endless, parser) as port,
        connection(port, limit=2**20) as (reader, writer),
    ):
        writer.write(HEAD + b"\r\n")
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"\r\n" + b"\x16\x03\x01")
        with suppress(TimeoutError):
            async with asyncio.timeout(STALL_S):
                while data := await reader.read(2**20):
                    assert b"HTTP/1.1" not in data
        await eventually(lambda: endless.left)


async def test_a_web_socket_has_none_of_these_times(parser: Parser) -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})

    async with (
        serving(echo, parser) as port,
        connect(f"ws://127.0.0.1:{port}", proxy=None) as socket_to_echo,
    ):
        for _ in range(2):
            await asyncio.sleep(READ_S + STALL_S)
            await socket_to_echo.send("hello")
            assert await socket_to_echo.recv() == "hello"


async def test_a_body_is_no_head(parser: Parser) -> None:
    async with (
        serving(read_all, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(POST % 1_000_000)
        writer.write(b"x" * 1_000_000)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def test_a_client_that_does_not_read_is_cut_off(parser: Parser) -> None:
    endless = Endless()
    async with (
        serving(endless, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(HEAD + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: endless.left, within_s=STALL_S + SLACK_S)
        # What the kernels of both sides and the two buffers in between took.
        assert endless.written < 32 * 2**20


async def test_a_client_that_reads_slowly_is_served(parser: Parser) -> None:
    endless = Endless()
    async with (
        serving(endless, parser) as port,
        connection(port, limit=65_536) as (reader, writer),
    ):
        writer.write(HEAD + b"\r\n")
        end = time.monotonic() + 4 * STALL_S
        while time.monotonic() < end:
            await reader.readexactly(4 * 2**20)
            await asyncio.sleep(STALL_S / 5)
        assert not endless.left
        await eventually(lambda: endless.left)


@pytest.mark.parametrize("begin", [b"0\r\nX: ", b"5;x="], ids=["a trailer", "beside a size"])
async def test_what_no_body_has_is_bounded_too(begin: bytes) -> None:
    async with (
        serving(hello, BoundedHttpTools) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
        ended = asyncio.create_task(closed_after(reader))
        sent = 0
        while not ended.done():
            writer.write(b"x" * 1000)
            sent += 1000
            assert sent < 100 * LIMITS.max_head_bytes
            await asyncio.sleep(0.001)


async def test_an_answer_that_was_read_is_not_cut_for_a_later_one(parser: Parser) -> None:
    """Whose bytes are under way just then."""
    part = b"x" * 300_000

    async def large_then_slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/large":
            await PlainTextResponse(part)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(2 * STALL_S / 20)
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    async with (
        serving(large_then_slow, parser) as port,
        connection(port, limit=1024) as (reader, writer),
    ):
        writer.write(HEAD.replace(b"/ ", b"/large ") + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(STALL_S / 2)
        await reader.readexactly(len(part))
        writer.write(HEAD + b"\r\n")
        async with asyncio.timeout(5):
            while b"end" not in (piece := await reader.read(100_000)):
                assert piece


async def test_each_of_two_requests_at_once_hears_that_the_client_has_left(parser: Parser) -> None:
    endless = Endless()
    async with (
        serving(endless, parser) as port,
        connection(port) as (reader, writer),
    ):
        writer.write(2 * (HEAD + b"\r\n"))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await eventually(lambda: endless.left)


async def test_an_answer_that_is_never_flushed_keeps_no_connection(parser: Parser) -> None:
    """Less than what pauses the writing, more than the kernels of both sides take."""
    answer = PlainTextResponse("x" * 60_000)
    cut = asyncio.Event()

    class Watched(parser):  # type: ignore[misc, valid-type]
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            cut.set()

        def connection_made(self, transport: Any) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            super().connection_made(transport)

    async with serving(answer, Watched) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, HEAD + b"Connection: close\r\n\r\n")
            async with asyncio.timeout(STALL_S + SLACK_S):
                await cut.wait()
