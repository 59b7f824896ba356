"""Clients that send or read too slowly, or send too much of a head, on a real socket."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from render_service.connection_limits import ConnectionLimits, limited_h11, limited_httptools
from tests.processes import free_port
from tests.render_service.fake_generate import eventually
from tests.served import served

pytestmark = pytest.mark.anyio

HEAD_TIMEOUT_S = 0.5
WRITE_TIMEOUT_S = 0.5
SLACK_S = 1.0
LIMITS = ConnectionLimits(
    head_timeout_s=HEAD_TIMEOUT_S, max_head_bytes=10_000, write_timeout_s=WRITE_TIMEOUT_S
)
HEAD = b"GET / HTTP/1.1\r\nHost: test\r\n"
PIECE = b"x" * 65_536

Parser = Callable[[ConnectionLimits], type[asyncio.Protocol]]


@pytest.fixture(params=[limited_h11, limited_httptools], ids=["h11", "httptools"])
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


@asynccontextmanager
async def serving(app: Any, parser: Parser) -> AsyncIterator[int]:
    port = free_port()
    config = uvicorn.Config(
        app,
        port=port,
        http=parser(LIMITS),
        lifespan="off",
        log_level="critical",
        timeout_keep_alive=10,
    )
    async with served(config):
        yield port


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
    async with serving(hello, parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert HEAD_TIMEOUT_S / 2 < await closed_after(reader) < HEAD_TIMEOUT_S + SLACK_S
        writer.close()


async def test_a_head_that_dribbles_has_no_more(parser: Parser) -> None:
    async with serving(hello, parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def dribble() -> None:
            writer.write(HEAD)
            while True:
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.05)

        dribbling = asyncio.create_task(dribble())
        assert await closed_after(reader) < HEAD_TIMEOUT_S + SLACK_S
        dribbling.cancel()
        writer.close()


async def test_the_head_of_a_later_request_has_its_time_too(parser: Parser) -> None:
    async with serving(hello, parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            # Idling is not sending slowly.
            await asyncio.sleep(1.5 * HEAD_TIMEOUT_S)
        writer.write(HEAD)
        assert await closed_after(reader) < HEAD_TIMEOUT_S + SLACK_S
        writer.close()


async def test_an_answer_may_take_longer_than_a_head(parser: Parser) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(2 * HEAD_TIMEOUT_S)
        await hello(scope, receive, send)

    async with serving(slow, parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x" * 1000], ids=["many headers", "a long one"])
async def test_a_head_has_its_size(line: bytes) -> None:
    async with serving(hello, limited_httptools) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        answered = asyncio.create_task(reader.readuntil(b"\r\n"))
        sent = 0
        while not answered.done() and not writer.is_closing():
            writer.write(line)
            sent += len(line)
            await asyncio.sleep(0)
        assert (await answered).startswith(b"HTTP/1.1 400")
        assert sent > LIMITS.max_head_bytes / 2
        writer.close()


async def test_a_body_is_no_head() -> None:
    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        await hello(scope, receive, send)

    async with serving(read, limited_httptools) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n")
        writer.write(b"x" * 1_000_000)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_does_not_read_is_cut_off(parser: Parser) -> None:
    endless = Endless()
    async with serving(endless, parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: endless.left, within_s=WRITE_TIMEOUT_S + SLACK_S)
        # What the kernels of both sides and the two buffers in between took.
        assert endless.written < 32 * 2**20
        writer.close()


async def test_a_client_that_reads_slowly_is_served(parser: Parser) -> None:
    endless = Endless()
    async with serving(endless, parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writer.write(HEAD + b"\r\n")
        end = time.monotonic() + 4 * WRITE_TIMEOUT_S
        while time.monotonic() < end:
            await reader.readexactly(4 * 2**20)
            await asyncio.sleep(WRITE_TIMEOUT_S / 5)
        assert not endless.left
        writer.close()
        await eventually(lambda: endless.left)


@pytest.mark.parametrize("begin", [b"0\r\nX: ", b"5;x="], ids=["a trailer", "beside a size"])
async def test_what_no_body_has_is_bounded_too(begin: bytes) -> None:
    async with serving(hello, limited_httptools) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
        ended = asyncio.create_task(closed_after(reader))
        sent = 0
        while not ended.done():
            writer.write(b"x" * 1000)
            sent += 1000
            assert sent < 100 * LIMITS.max_head_bytes
            await asyncio.sleep(0.001)
        writer.close()


async def test_an_answer_that_is_never_flushed_keeps_no_connection(parser: Parser) -> None:
    """Less than what pauses the writing, more than the kernels of both sides take."""
    answer = PlainTextResponse("x" * 60_000)
    cut = asyncio.Event()

    class Watched(parser(LIMITS)):  # type: ignore[misc]
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            cut.set()

        def connection_made(self, transport: Any) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            super().connection_made(transport)

    async with serving(answer, lambda limits: Watched) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, HEAD + b"Connection: close\r\n\r\n")
            async with asyncio.timeout(WRITE_TIMEOUT_S + SLACK_S):
                await cut.wait()
