"""What hostile or broken clients do to connections, on real sockets around a fake engine."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from generate_service import routes
from generate_service.vllm_request import EngineRequest
from shared_protocol.answer import TokenDelta
from shared_protocol.request import GenerateRequest
from shared_protocol.startup.connection_limits import MAX_HEAD_BYTES
from tests.generate_service.fake_engine import flood, forever, silent, three_tokens
from tests.generate_service.fake_service import PATH, REQUEST, serving, until

pytestmark = pytest.mark.anyio

BODY = json.dumps(REQUEST | {"stream": True}).encode()
HEAD = (
    f"POST {PATH} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n"
).encode()


@asynccontextmanager
async def connection(
    client: httpx.AsyncClient,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    # Small, so that what is not read is soon more than it holds.
    reader, writer = await asyncio.open_connection(
        client.base_url.host, client.base_url.port, limit=1024
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def status_of(reader: asyncio.StreamReader, within_s: float = 2.0) -> int | None:
    """The status with which the connection ends; None if it ends without."""
    async with asyncio.timeout(within_s):
        answer = await reader.read()
    return int(answer.split()[1]) if answer else None


SLOW = {
    "nothing": (b"", b"", None),
    "a head without end": (HEAD, b"X: 1\r\n", 408),
    "a header without end": (HEAD + b"X: ", b"1", 408),
    "a body without end": (HEAD + b"\r\n", BODY[:1], 408),
}


@pytest.mark.parametrize(("first", "rest", "status"), SLOW.values(), ids=SLOW)
async def test_a_client_that_sends_slowly(first: bytes, rest: bytes, status: int | None) -> None:
    async with (
        serving(three_tokens, request_read_timeout_s=0.5) as (client, engine),
        connection(client) as (reader, writer),
    ):
        writer.write(first)
        answer = asyncio.create_task(status_of(reader))
        while not answer.done():
            writer.write(rest)
            await asyncio.sleep(0.05)
        assert await answer == status
        assert not engine.requests
        assert (await client.post(PATH, json=REQUEST)).status_code == 200


async def test_the_time_to_send_is_that_of_each_request() -> None:
    async with (
        serving(three_tokens, request_read_timeout_s=0.5) as (client, engine),
        connection(client) as (reader, writer),
    ):
        for _ in range(3):
            await asyncio.sleep(0.3)
            writer.write(HEAD)
            await asyncio.sleep(0.3)
            writer.write(b"\r\n" + BODY)
            async with asyncio.timeout(5.0):
                assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"0\r\n\r\n")
        await asyncio.sleep(0.7)
        assert not reader.at_eof()
        assert len(engine.requests) == 3


async def test_an_answer_takes_longer_than_a_request_may() -> None:
    async with serving(forever, request_read_timeout_s=0.3) as (client, engine):
        async with client.stream("POST", PATH, json=REQUEST | {"stream": True}) as response:
            chunks = response.aiter_bytes()
            async with asyncio.timeout(10.0):
                for _ in range(100):
                    await anext(chunks)
        await until(lambda: engine.aborted == 1)


LARGE_HEADS = {
    "one header": [b"X: " + b"x" * MAX_HEAD_BYTES],
    "many headers": [b"X: 1\r\n" * (MAX_HEAD_BYTES // 2)],
    "one header without end": [b"X: ", *[b"x" * 4096] * (MAX_HEAD_BYTES // 2048)],
    "headers without end": [b"X: 1\r\n" * 512] * (MAX_HEAD_BYTES // 512),
}


@pytest.mark.parametrize("chunks", LARGE_HEADS.values(), ids=LARGE_HEADS)
async def test_large_heads(chunks: list[bytes]) -> None:
    async with (
        serving(three_tokens) as (client, engine),
        connection(client) as (reader, writer),
    ):
        writer.write(HEAD)
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0.001)
        if len(chunks) == 1:
            writer.write(b"\r\n\r\n" + BODY)
        assert await status_of(reader) == 431
        assert not engine.requests
        large = {"X": "x" * (MAX_HEAD_BYTES - 1000)}
        assert (await client.post(PATH, json=REQUEST, headers=large)).status_code == 200


async def test_bytes_that_are_no_http() -> None:
    async with serving(three_tokens) as (client, _), connection(client) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert await status_of(reader) == 400


async def test_a_refused_body_is_not_read_for_ever() -> None:
    async with (
        serving(three_tokens, max_body_bytes=10, request_read_timeout_s=0.5) as (client, engine),
        connection(client) as (reader, writer),
    ):
        writer.write(HEAD.replace(str(len(BODY)).encode(), b"100000000") + b"\r\n")
        answer = asyncio.create_task(status_of(reader))
        while not answer.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert await answer == 413
        assert not engine.requests


async def test_bodies_that_are_held_leave_no_memory_for_more() -> None:
    """What was sent counts until its request ends; what was only announced does not."""
    memory = 2 * len(BODY) - 1
    async with (
        serving(silent, max_bodies_bytes=memory, request_read_timeout_s=0.5) as (client, engine),
        connection(client) as (_, holder),
    ):
        holder.write(HEAD + b"\r\n" + BODY)
        await until(lambda: engine.requests)
        async with connection(client) as (reader, writer):
            writer.write(HEAD + b"\r\n")
            assert await status_of(reader) == 503
        holder.transport.abort()
        await until(lambda: engine.aborted == 1)
        async with connection(client) as (_, writer):
            writer.write(HEAD + b"\r\n" + BODY)
            await until(lambda: len(engine.requests) == 2)


async def test_a_client_that_does_not_read_its_answer() -> None:
    async with (
        serving(flood, answer_stall_timeout_s=0.5) as (client, engine),
        connection(client) as (_, writer),
    ):
        writer.write(HEAD + b"\r\n" + BODY)
        await until(lambda: engine.requests)
        await until(lambda: engine.aborted == 1)
        given = engine.steps
        await asyncio.sleep(0.2)
        assert engine.steps == given


async def test_a_client_that_reads_slowly_gets_its_answer() -> None:
    async with (
        serving(flood, answer_stall_timeout_s=1.0) as (client, engine),
        connection(client) as (reader, writer),
    ):
        writer.write(HEAD + b"\r\n" + BODY)
        for _ in range(20):
            await asyncio.sleep(0.1)
            await reader.readexactly(300_000)
        assert not engine.aborted


async def test_many_streams_at_once() -> None:
    count = 512
    all_have_begun = asyncio.Event()

    async def patient(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
        yield [TokenDelta(token_ids=[7])]
        await all_have_begun.wait()
        yield [TokenDelta(token_ids=[8], finish_reason="length")]

    async with serving(patient) as (client, engine):

        async def stream() -> bytes:
            async with connection(client) as (reader, writer):
                writer.write(HEAD + b"Connection: close\r\n\r\n" + BODY)
                return await reader.read()

        streams = [asyncio.create_task(stream()) for _ in range(count)]
        await until(lambda: engine.most_at_once == count, within_s=180.0)
        all_have_begun.set()
        answers = await asyncio.gather(*streams)
    assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in answers)
    assert {answer.count(b"data: ") for answer in answers} == {3}


async def test_more_requests_than_there_may_be_are_refused_at_once() -> None:
    async with serving(silent, max_concurrent_requests=3) as (client, engine):
        running = [asyncio.create_task(client.post(PATH, json=REQUEST)) for _ in range(3)]
        await until(lambda: len(engine.requests) == 3)
        async with asyncio.timeout(1.0):
            refused = await client.post(PATH, json=REQUEST)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        # Who asks whether the service is ready, or well, is not refused.
        assert (await client.get("/ready")).status_code == 200
        running[0].cancel()
        await until(lambda: engine.aborted == 1)
        running[0] = asyncio.create_task(client.post(PATH, json=REQUEST))
        await until(lambda: len(engine.requests) == 4)
        for task in running:
            task.cancel()


async def test_requests_that_are_still_sent_count() -> None:
    async with (
        serving(three_tokens, max_concurrent_requests=1) as (client, _),
        connection(client) as (_, writer),
    ):
        writer.write(HEAD + b"\r\n" + BODY[:10])
        async with asyncio.timeout(5.0):
            while (await client.post(PATH, json=REQUEST)).status_code != 503:
                await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(5.0):
            while (await client.post(PATH, json=REQUEST)).status_code != 200:
                await asyncio.sleep(0.01)


async def test_large_bodies_wait_for_each_other_and_small_ones_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: set[int] = set()
    may_go_on = threading.Event()

    def check(request: GenerateRequest, *, dtype: str) -> None:
        if request.cache_salt is not None:
            threads.add(threading.get_ident())
            may_go_on.wait()

    monkeypatch.setattr(routes, "check_values", check)
    large = REQUEST | {"cache_salt": "x" * routes.SMALL_BODY_BYTES}
    async with serving(three_tokens) as (client, engine):
        waiting = [asyncio.create_task(client.post(PATH, json=large)) for _ in range(8)]
        await until(lambda: len(threads) == routes.LARGE_BODY_THREADS)
        for _ in range(3):
            assert (await client.post(PATH, json=REQUEST)).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert len(engine.requests) == 3
        may_go_on.set()
        answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len(threads) == routes.LARGE_BODY_THREADS


UNTOLD = {
    "a trailer": (b"0\r\n", b"X: "),
    "beside the size of a chunk": (b"", b"5;x="),
}


@pytest.mark.parametrize(("before", "begin"), UNTOLD.values(), ids=UNTOLD)
async def test_what_no_body_has_is_bounded_too(before: bytes, begin: bytes) -> None:
    head = HEAD.split(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
    async with serving(three_tokens) as (client, _), connection(client) as (reader, writer):
        writer.write(head + before + begin)
        ended = asyncio.create_task(reader.read())
        sent = 0
        while not ended.done():
            writer.write(b"x" * 4096)
            sent += 4096
            assert sent < 20 * MAX_HEAD_BYTES
            await asyncio.sleep(0.005)
        with contextlib.suppress(ConnectionError):
            await ended
