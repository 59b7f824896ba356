import asyncio
import base64
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import anyio
import msgspec
import pytest

from render_service.replica_answer import NotAccepted
from render_service.transport import (
    GenerateTransport,
    NotReady,
    TransportSettings,
    without_userinfo,
)
from shared_protocol.answer import FRAMES_CONTENT_TYPE, Failure, TokenDelta
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE
from shared_protocol.errors import (
    InternalError,
    InvalidRequest,
    MissingFeatures,
    PayloadTooLarge,
    ReplicaFailed,
    TandemError,
    Unavailable,
    UnknownModel,
)
from shared_protocol.frames import encode_frame
from tests.processes import free_port
from tests.render_service.fake_generate import (
    FIRST,
    INFO,
    LAST,
    NO_AUTHORITIES,
    Behaviour,
    Exchange,
    FakeGenerate,
    answer,
    answer_bytes,
    answer_bytewise,
    answer_error,
    close_after,
    eventually,
    hang_after,
    refuse,
    reset_after,
    reset_connection,
    write_raw,
)

pytestmark = pytest.mark.anyio

BODY = b"a request"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The two loops report a lost connection differently."""
    return "asyncio", {"use_uvloop": request.param}


async def ask(transport: GenerateTransport, url: str) -> list[TokenDelta]:
    async with transport.stream(url, [BODY]) as deltas:
        return [delta async for delta in deltas]


async def collect(deltas: AsyncIterator[TokenDelta], seen: list[TokenDelta]) -> None:
    async for delta in deltas:
        seen.append(delta)


# Answers


async def test_the_request_is_sent_as_it_is(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    body = bytes(range(256)) * 10_000
    async with transport.stream(replica.url, [body], headers={"traceparent": "00-1"}) as deltas:
        assert [delta async for delta in deltas] == [FIRST, LAST]
    (request,) = replica.requests
    assert request.body == body
    assert request.headers["content-type"] == BINARY_CONTENT_TYPE
    assert request.headers["content-length"] == str(len(body))
    assert request.headers["accept"] == "application/vnd.tandem.generate+msgpack"
    assert request.headers["traceparent"] == "00-1"


async def test_a_delta_is_there_as_soon_as_it_was_sent(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = hang_after(FIRST)
    async with transport.stream(replica.url, [BODY]) as deltas, asyncio.timeout(1):
        assert await anext(deltas) == FIRST


async def test_frames_are_put_together_from_single_bytes(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = answer_bytewise(FIRST, LAST)
    assert await ask(transport, replica.url) == [FIRST, LAST]


async def test_all_frames_may_come_in_one_chunk(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = answer_bytes(encode_frame(FIRST) * 100 + encode_frame(LAST))
    assert await ask(transport, replica.url) == [FIRST] * 100 + [LAST]


async def test_many_deltas_at_once_hold_up_nobody(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = answer(*[FIRST] * 200, LAST)
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - before)

    ticking = asyncio.create_task(tick())
    begun = time.perf_counter()
    async with transport.stream(replica.url, [BODY]) as deltas:
        async for _ in deltas:
            time.sleep(0.001)  # noqa: ASYNC251 - the work on a delta
    took = time.perf_counter() - begun
    ticking.cancel()
    assert longest < took / 10


async def test_an_answer_ends_with_its_last_delta(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = hang_after(FIRST, LAST)
    async with asyncio.timeout(1):
        assert await ask(transport, replica.url) == [FIRST, LAST]
    await eventually(lambda: replica.connections == 0)


@pytest.mark.parametrize("read_past_last", [True, False])
async def test_a_connection_is_used_again(
    transport: GenerateTransport, replica: FakeGenerate, read_past_last: bool
) -> None:
    for _ in range(3):
        async with transport.stream(replica.url, [BODY]) as deltas:
            async for delta in deltas:
                if delta.finished and not read_past_last:
                    break
    assert len({request.client_port for request in replica.requests}) == 1
    assert replica.disconnects == 0


# Leaving early


async def test_leaving_closes_the_connection(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = hang_after(FIRST)
    async with transport.stream(replica.url, [BODY]) as deltas:
        async for _ in deltas:
            break
    await eventually(lambda: replica.disconnects == 1 and replica.connections == 0, within_s=1)


@pytest.mark.parametrize("behaviour", [hang_after(), hang_after(FIRST)], ids=["wait", "stream"])
async def test_cancelling_the_task_closes_the_connection(
    transport: GenerateTransport, replica: FakeGenerate, behaviour: Behaviour
) -> None:
    replica.behaviour = behaviour
    task = asyncio.create_task(ask(transport, replica.url))
    await eventually(lambda: len(replica.requests) == 1)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: replica.disconnects == 1 and replica.connections == 0, within_s=1)


@pytest.mark.parametrize("behaviour", [hang_after(), hang_after(FIRST)], ids=["wait", "stream"])
async def test_cancelling_a_scope_closes_the_connection(
    transport: GenerateTransport, replica: FakeGenerate, behaviour: Behaviour
) -> None:
    # As Starlette does: every await of the clean-up is cancelled again.
    replica.behaviour = behaviour
    with anyio.move_on_after(0.1):
        await ask(transport, replica.url)
    await eventually(lambda: replica.disconnects == 1 and replica.connections == 0, within_s=1)


async def test_an_error_of_the_consumer_closes_the_connection(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    async def consume() -> None:
        async with transport.stream(replica.url, [BODY]) as deltas:
            await anext(deltas)
            raise ZeroDivisionError

    replica.behaviour = hang_after(FIRST)
    with pytest.raises(ZeroDivisionError):
        await consume()
    await eventually(lambda: replica.disconnects == 1 and replica.connections == 0, within_s=1)


@pytest.mark.parametrize("behaviour", [answer(FIRST, LAST), hang_after()], ids=["fast", "never"])
async def test_no_moment_to_cancel_loses_a_connection(
    replica: FakeGenerate, behaviour: Behaviour
) -> None:
    settings = TransportSettings(max_idle_connections=0)
    replica.behaviour = behaviour
    async with GenerateTransport(settings, ssl_context=NO_AUTHORITIES) as transport:
        for steps in range(100):
            task = asyncio.create_task(ask(transport, replica.url))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: replica.connections == 0)


async def test_cancelling_twice_closes_the_connection(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.behaviour = hang_after(FIRST)
    for steps in range(6):
        task = asyncio.create_task(ask(transport, replica.url))
        await eventually(lambda: len(replica.requests) > steps)  # noqa: B023
        await asyncio.sleep(0.02)
        task.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: replica.disconnects == 6 and replica.connections == 0)
    assert len(transport._connections) == 0
    replica.behaviour = answer(FIRST, LAST)
    await ask(transport, replica.url)
    assert len(transport._connections) == 1


async def test_nothing_is_left_behind(replica: FakeGenerate) -> None:
    tasks = asyncio.all_tasks()
    async with GenerateTransport() as transport:
        for behaviour in (
            answer(FIRST, LAST),
            hang_after(FIRST),
            reset_after(FIRST),
            refuse(503, ""),
        ):
            replica.behaviour = behaviour
            for _ in range(5):
                with anyio.move_on_after(0.02):
                    await asyncio.gather(ask(transport, replica.url), return_exceptions=True)
        await transport.probe(replica.url)
    await eventually(lambda: replica.connections == 0)
    await eventually(lambda: asyncio.all_tasks() == tasks)


# Not accepted


async def test_nobody_listens(transport: GenerateTransport) -> None:
    with pytest.raises(NotAccepted, match="could not connect"):
        await ask(transport, f"http://127.0.0.1:{free_port()}")


async def test_reset_as_soon_as_it_is_open(transport: GenerateTransport) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reset_connection(cast("asyncio.Transport", writer.transport))

    async with raw_replica(reset) as url:
        for _ in range(20):
            with pytest.raises(NotAccepted):
                await ask(transport, url)
            with pytest.raises(NotReady):
                await transport.probe(url)


@contextmanager
def deaf_listener() -> Iterator[str]:
    """A socket whose queue of connections is full, so that the next ones are not answered."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_connecting_takes_too_long() -> None:
    settings = TransportSettings(connect_timeout_s=0.1)
    with deaf_listener() as url:
        async with GenerateTransport(settings, ssl_context=NO_AUTHORITIES) as transport:
            with pytest.raises(NotAccepted, match=r"no connection within 0\.1 s"):
                await ask(transport, url)


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize(("retry_after", "seconds"), [("7", 7), (None, None), ("soon", None)])
async def test_the_replica_refuses(
    transport: GenerateTransport,
    replica: FakeGenerate,
    status: int,
    retry_after: str | None,
    seconds: int | None,
) -> None:
    replica.behaviour = refuse(status, "The queue is full", retry_after=retry_after)
    with pytest.raises(NotAccepted, match=f"answered {status}: The queue is full") as caught:
        await ask(transport, replica.url)
    assert caught.value.retry_after_s == seconds


# Answered with an error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (404, UnknownModel),
        (413, PayloadTooLarge),
        (422, InvalidRequest),
        (451, InvalidRequest),
    ],
)
async def test_an_error_of_the_client(
    transport: GenerateTransport, replica: FakeGenerate, status: int, kind: type[TandemError]
) -> None:
    replica.behaviour = refuse(status, "token_ids is empty", param="token_ids")
    with pytest.raises(kind) as caught:
        await ask(transport, replica.url)
    assert type(caught.value) is kind
    assert caught.value.message == "token_ids is empty"
    assert caught.value.param == "token_ids"
    assert len(replica.requests) == 1


async def test_missing_features(transport: GenerateTransport, replica: FakeGenerate) -> None:
    error = MissingFeatures(["aa", "bb"])
    replica.behaviour = answer_error(409, msgspec.json.encode(error.body()))
    with pytest.raises(MissingFeatures) as caught:
        await ask(transport, replica.url)
    assert caught.value.hashes == ["aa", "bb"]


@pytest.mark.parametrize("status", [401, 403, 408])
async def test_what_is_no_fault_of_the_client_was_not_accepted(
    transport: GenerateTransport, replica: FakeGenerate, status: int
) -> None:
    replica.behaviour = refuse(status, "Who are you?")
    with pytest.raises(NotAccepted) as caught:
        await ask(transport, replica.url)
    assert not caught.value.busy


@pytest.mark.parametrize("status", [500, 501, 502, 504, 431])
async def test_an_error_of_the_replica_stays_in_the_log(
    transport: GenerateTransport,
    replica: FakeGenerate,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica.behaviour = refuse(status, "CUDA out of memory on host-17")
    with pytest.raises(InternalError) as caught:
        await ask(transport, replica.url)
    assert "host-17" not in str(caught.value.body())
    assert "host-17" in caplog.text
    assert len(replica.requests) == 1


@pytest.mark.parametrize("status", [400, 502, 503])
async def test_an_error_that_is_not_of_a_replica(
    transport: GenerateTransport, replica: FakeGenerate, status: int
) -> None:
    body = b"upstream connect error or disconnect/reset before headers"
    replica.behaviour = answer_error(status, body, content_type="text/plain")
    with pytest.raises(ReplicaFailed):
        await ask(transport, replica.url)


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (Failure("min_p is too big", 400, param="min_p"), InvalidRequest, "min_p is too big"),
        (Failure("CUDA error on host-17"), InternalError, "failed to answer"),
        # The engine had the request: this must not look as if another one could get it.
        (Failure("shutting down", 503), InternalError, "failed to answer"),
    ],
)
async def test_a_failure_frame(
    transport: GenerateTransport,
    replica: FakeGenerate,
    failure: Failure,
    kind: type[TandemError],
    message: str,
) -> None:
    replica.behaviour = answer(FIRST, failure)
    seen: list[TokenDelta] = []
    async with transport.stream(replica.url, [BODY]) as deltas:
        with pytest.raises(kind, match=message) as caught:
            await collect(deltas, seen)
    assert seen == [FIRST]
    assert caught.value.param == failure.param


# Lost


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(reset_after(), id="reset before the status"),
        pytest.param(close_after(), id="close before the status"),
        pytest.param(write_raw(b"\0garbage\r\n\r\n"), id="garbage for a status"),
        pytest.param(write_raw(b"HTTP/1.1 200"), id="half a status"),
        pytest.param(answer_error(204, b""), id="another status"),
        pytest.param(answer_error(302, b""), id="a redirect"),
        pytest.param(answer_bytes(b"{}", "application/json"), id="another content type"),
    ],
)
async def test_lost_on_entering_or_at_once(
    transport: GenerateTransport, replica: FakeGenerate, behaviour: Behaviour
) -> None:
    replica.behaviour = behaviour
    with pytest.raises(ReplicaFailed):
        await ask(transport, replica.url)
    assert len(replica.requests) == 1


FRAME = encode_frame(FIRST)


@pytest.mark.parametrize(
    ("behaviour", "deltas_before"),
    [
        pytest.param(reset_after(FIRST, FIRST), 2, id="reset"),
        pytest.param(close_after(FIRST, FIRST), 2, id="closed"),
        pytest.param(answer(FIRST, FIRST), 2, id="no last delta"),
        pytest.param(answer(), 0, id="empty"),
        pytest.param(answer_bytes(FRAME + FRAME[:-1]), 1, id="half a frame"),
        pytest.param(answer_bytes(FRAME + b"\x05\0\0\0\xc1\xc1\xc1\xc1\xc1"), 1, id="no frame"),
        pytest.param(answer_bytes(FRAME + b"\xff" * 10), 1, id="a length beyond any"),
        pytest.param(answer_bytes(b"<html>"), 0, id="html"),
    ],
)
async def test_lost_while_streaming(
    transport: GenerateTransport,
    replica: FakeGenerate,
    behaviour: Behaviour,
    deltas_before: int,
) -> None:
    replica.behaviour = behaviour
    seen = []

    async def read(deltas: AsyncIterator[TokenDelta]) -> None:
        async for delta in deltas:
            seen.append(delta)

    async with transport.stream(replica.url, [BODY]) as deltas:
        with pytest.raises(ReplicaFailed) as caught:
            await read(deltas)
    assert seen == [FIRST] * deltas_before
    assert "127.0.0.1" not in str(caught.value.body())
    assert len(replica.requests) == 1


async def test_the_replica_is_killed(transport: GenerateTransport, replica: FakeGenerate) -> None:
    replica.behaviour = hang_after(FIRST)
    async with transport.stream(replica.url, [BODY]) as deltas:
        await anext(deltas)
        replica.kill()
        with pytest.raises(ReplicaFailed):
            await anext(deltas)


async def test_a_silence_beyond_the_limit(replica: FakeGenerate) -> None:
    replica.behaviour = hang_after()
    async with GenerateTransport(TransportSettings(read_timeout_s=0.1)) as transport:
        with pytest.raises(ReplicaFailed):
            await ask(transport, replica.url)
    await eventually(lambda: replica.disconnects == 1)


async def test_an_answer_that_ends_with_its_connection(transport: GenerateTransport) -> None:
    """As of a proxy of HTTP/1.0."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + msgspec.json.encode(INFO))
        else:
            error = msgspec.json.encode(InvalidRequest("no", param="token_ids").body())
            writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n" + error)
        await writer.drain()

    async with raw_replica(behave) as url:
        assert await transport.probe(url) == INFO
        with pytest.raises(InvalidRequest, match="no"):
            await ask(transport, url)
        assert len(transport._connections) == 0


# A connection that idled


async def test_lost_on_a_used_connection_is_not_sent_again(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    await ask(transport, replica.url)
    replica.behaviour = reset_after()
    with pytest.raises(ReplicaFailed):
        await ask(transport, replica.url)
    assert len(replica.requests) == 2
    assert len({request.client_port for request in replica.requests}) == 1


async def test_a_connection_that_the_replica_closed_is_not_used(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    await ask(transport, replica.url)
    replica.close_connections()
    await eventually(lambda: replica.connections == 0)
    assert await ask(transport, replica.url) == [FIRST, LAST]


async def test_a_kept_connection_that_was_just_closed_says_nothing_of_the_replica(
    transport: GenerateTransport,
) -> None:
    """The head is under way when the end of the connection comes: nothing was begun."""
    heads = 0

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heads
        await reader.readuntil(b"\r\n\r\n")
        heads += 1
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(len(BODY))
        frames = encode_frame(FIRST) + encode_frame(LAST)
        head = f"HTTP/1.1 200\r\ncontent-type: {FRAMES_CONTENT_TYPE}\r\ncontent-length: "
        writer.write(f"{head}{len(frames)}\r\n\r\n".encode() + frames)
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            heads += 1

    async with raw_replica(behave) as url:
        assert await ask(transport, url) == [FIRST, LAST]
        assert await ask(transport, url) == [FIRST, LAST]
    assert heads == 3


async def test_what_comes_on_an_idle_connection_closes_it(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    async def behave(exchange: Exchange) -> None:
        await answer(FIRST, LAST)(exchange)
        await asyncio.sleep(0.1)
        exchange.write_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    replica.behaviour = behave
    assert await ask(transport, replica.url) == [FIRST, LAST]
    assert len(transport._connections) == 1
    await eventually(lambda: len(transport._connections) == 0)


async def test_a_connection_is_not_kept_beyond_its_expiry(replica: FakeGenerate) -> None:
    async with GenerateTransport(TransportSettings(keepalive_expiry_s=0.1)) as transport:
        for _ in range(2):
            await ask(transport, replica.url)
            await asyncio.sleep(0.15)
    assert len({request.client_port for request in replica.requests}) == 2


def test_a_connection_must_not_be_kept_as_long_as_the_replica_keeps_it() -> None:
    with pytest.raises(ValueError, match="keepalive_expiry_s is 45, at most 30 is safe"):
        TransportSettings(keepalive_expiry_s=45)


# Probes


async def test_a_ready_replica(transport: GenerateTransport, replica: FakeGenerate) -> None:
    assert await transport.probe(replica.url) == INFO


async def test_a_member_that_a_later_version_added_is_ignored(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.info = msgspec.json.encode(msgspec.to_builtins(INFO) | {"region": "north"})
    assert await transport.probe(replica.url) == INFO


async def test_a_replica_that_says_why_it_is_not_ready(
    transport: GenerateTransport, replica: FakeGenerate
) -> None:
    replica.not_ready = "The engine is starting"
    with pytest.raises(NotReady, match="/inference/v1/info answered 503: The engine is starting"):
        await transport.probe(replica.url)


@pytest.mark.parametrize("info", [b"<html>", b"{}", b'{"vocab_size": "many"}'])
async def test_an_info_that_is_none(
    transport: GenerateTransport, replica: FakeGenerate, info: bytes
) -> None:
    replica.info = info
    with pytest.raises(NotReady, match="not understood"):
        await transport.probe(replica.url)


async def test_a_probe_of_nobody(transport: GenerateTransport) -> None:
    with pytest.raises(NotReady, match="ConnectionRefusedError"):
        await transport.probe(f"http://127.0.0.1:{free_port()}")


async def test_a_probe_without_an_answer(replica: FakeGenerate) -> None:
    replica.probe_delay_s = 5.0
    async with GenerateTransport(TransportSettings(probe_timeout_s=0.1)) as transport:
        with pytest.raises(NotReady, match=r"within 0\.1 s"):
            await transport.probe(replica.url)


# URLs


async def test_credentials_of_the_url_are_sent_and_not_logged(
    transport: GenerateTransport, replica: FakeGenerate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = replica.url.replace("http://", "http://render:se%40cret@")
    await transport.probe(url)
    await ask(transport, url)
    replica.behaviour = reset_after()
    with pytest.raises(ReplicaFailed):
        await ask(transport, url)
    sent = replica.requests[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"render:se@cret"
    assert str(replica.port) in caplog.text
    assert "cret" not in caplog.text
    assert sent not in caplog.text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000"),
        ("https://user:secret@gpu-1/tandem/", "https://gpu-1/tandem"),
        ("http://user@[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_the_part_of_a_url_to_show(url: str, shown: str) -> None:
    assert without_userinfo(url) == shown


# Asking for the body


@asynccontextmanager
async def raw_replica(
    behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """One that a test writes byte by byte."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await behave(reader, writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_body_is_sent_after_a_while_to_who_never_asks() -> None:
    bodies: list[bytes] = []

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        bodies.append(await reader.readexactly(len(BODY)))
        frames = encode_frame(FIRST) + encode_frame(LAST)
        head = f"HTTP/1.1 200\r\ncontent-type: {FRAMES_CONTENT_TYPE}\r\ncontent-length: "
        writer.write(f"{head}{len(frames)}\r\n\r\n".encode() + frames)
        await writer.drain()

    settings = TransportSettings(continue_timeout_s=0.1)
    async with (
        raw_replica(behave) as url,
        GenerateTransport(settings, ssl_context=NO_AUTHORITIES) as transport,
    ):
        assert await ask(transport, url) == [FIRST, LAST]
    assert bodies == [BODY]


async def test_who_asks_for_the_body_and_does_not_read_it_may_have_begun() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await sent.wait()

    sent = asyncio.Event()
    settings = TransportSettings(send_timeout_s=0.1)
    async with (
        raw_replica(behave) as url,
        GenerateTransport(settings, ssl_context=NO_AUTHORITIES) as transport,
    ):
        with pytest.raises(ReplicaFailed):
            async with transport.stream(url, [bytes(2**25)]):
                pass
        sent.set()


async def test_the_body_is_not_sent_to_who_answers_without(transport: GenerateTransport) -> None:
    rest: list[bytes] = []

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        error = msgspec.json.encode(Unavailable("The queue is full").body())
        writer.write(b"HTTP/1.1 503\r\ncontent-length: %d\r\n\r\n%b" % (len(error), error))
        rest.append(await reader.read(-1))

    async with raw_replica(behave) as url:
        with pytest.raises(NotAccepted, match="answered 503: The queue is full"):
            await ask(transport, url)
        await eventually(lambda: bool(rest))
    assert rest == [b""]


async def test_one_that_closes_without_asking_has_not_begun(transport: GenerateTransport) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with raw_replica(behave) as url:
        with pytest.raises(NotAccepted, match="has not asked for the body"):
            await ask(transport, url)
