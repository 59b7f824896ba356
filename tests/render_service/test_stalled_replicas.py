"""A replica that is silent: stopped, or behind a network that drops everything."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from render_service.replicas import ReplicaPool
from render_service.transport import GenerateTransport, NoAnswer, NotReady, TransportSettings
from shared_protocol.errors import ReplicaFailed, Unavailable
from tests.processes import free_port
from tests.render_service.fake_generate import (
    FIRST,
    INFO,
    LAST,
    NO_AUTHORITIES,
    FakeGenerate,
    PlainRequest,
    eventually,
    hang_after,
)
from tests.render_service.replica_process import ReplicaProcess

pytestmark = pytest.mark.anyio

REQUEST = PlainRequest(b"a request")
PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_S = 0.5
OUT_WITHIN_S = PROBE_INTERVAL_S + PROBE_TIMEOUT_S
LATE_S = 1.0
STALL_S = 2.0
# One more probe may begin just before the time is up.
GIVEN_UP_WITHIN_S = PROBE_INTERVAL_S + STALL_S + PROBE_TIMEOUT_S
SLACK_S = 1.0
CONCURRENT = 32


@asynccontextmanager
async def open_pool(
    *members: ReplicaProcess | FakeGenerate, late_s: float = LATE_S, stall_s: float = STALL_S
) -> AsyncIterator[ReplicaPool]:
    settings = TransportSettings(probe_timeout_s=PROBE_TIMEOUT_S)
    async with (
        GenerateTransport(settings, ssl_context=NO_AUTHORITIES) as transport,
        ReplicaPool(
            [member.url for member in members],
            transport,
            expected=INFO,
            probe_interval_s=PROBE_INTERVAL_S,
            late_s=late_s,
            stall_s=stall_s,
        ) as pool,
    ):
        await eventually(lambda: all(r["ready"] for r in pool.status()["replicas"]))
        yield pool


class Reader:
    """Reads one answer to its end.

    Attributes:
        deltas: how many have come.
        ended: when, on the monotonic clock.
        error: what it ended with.
    """

    def __init__(self, pool: ReplicaPool) -> None:
        self.deltas: list[object] = []
        self.ended: float | None = None
        self.error: Exception | None = None
        self.task = asyncio.create_task(self._read(pool))

    async def _read(self, pool: ReplicaPool) -> None:
        try:
            async with pool.generate(REQUEST) as deltas:
                async for delta in deltas:
                    self.deltas.append(delta)
        except Exception as error:
            self.error = error
        self.ended = time.monotonic()


@asynccontextmanager
async def reading(pool: ReplicaPool, count: int) -> AsyncIterator[list[Reader]]:
    readers = [Reader(pool) for _ in range(count)]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.task.cancel()
        await asyncio.gather(*(reader.task for reader in readers), return_exceptions=True)


@pytest.fixture
def start_process(tmp_path: Path) -> Callable[[str], ReplicaProcess]:
    def start(behaviour: str) -> ReplicaProcess:
        return ReplicaProcess(behaviour, tmp_path / f"{free_port()}.log")

    return start


StartProcess = Callable[[str], ReplicaProcess]


async def test_it_leaves_the_rotation_and_comes_back(start_process: StartProcess) -> None:
    with start_process("answer") as replica:
        async with open_pool(replica) as pool:
            replica.stop()
            await eventually(lambda: not pool.has_ready_replica(), within_s=OUT_WITHIN_S + SLACK_S)
            (row,) = pool.status()["replicas"]
            assert row["reason"] == "no answer on /inference/v1/info within 0.5 s"
            await eventually(lambda: not pool.takes_requests(), within_s=LATE_S + SLACK_S)
            with pytest.raises(Unavailable):
                async with pool.generate(REQUEST):
                    pass
            replica.go_on()
            await eventually(pool.has_ready_replica, within_s=SLACK_S)


async def test_one_that_is_late_answers_what_waits_for_it(start_process: StartProcess) -> None:
    with start_process("answer") as replica:
        async with open_pool(replica, late_s=30.0) as pool:
            replica.stop()
            await eventually(lambda: not pool.has_ready_replica())
            async with reading(pool, CONCURRENT) as readers:
                await asyncio.sleep(OUT_WITHIN_S)
                assert not any(reader.ended for reader in readers)
                replica.go_on()
                await eventually(lambda: all(reader.ended for reader in readers))
            assert [reader.error for reader in readers] == [None] * CONCURRENT


async def test_one_that_is_late_is_asked_only_while_nobody_else_is_in_rotation(
    start_process: StartProcess, start_replica: Callable[[], FakeGenerate]
) -> None:
    with start_process("answer") as stopped:
        async with open_pool(stopped, late_s=30.0) as pool:
            stopped.stop()
            await eventually(lambda: not pool.has_ready_replica())
            async with reading(pool, 4) as readers:
                other = pool._add(start_replica().url)
                await eventually(lambda: all(reader.ended for reader in readers))
            assert [reader.error for reader in readers] == [None] * 4
            assert pool._candidates() == [other]


@pytest.mark.parametrize("behaviour", ["stream", "prefill"])
async def test_what_it_has_begun_ends_and_is_sent_to_nobody_else(
    start_process: StartProcess, start_replica: Callable[[], FakeGenerate], behaviour: str
) -> None:
    with start_process(behaviour) as stopped:
        other = start_replica()
        other.not_ready = "not yet"
        async with open_pool(stopped) as pool, reading(pool, CONCURRENT) as readers:
            await eventually(lambda: stopped.received == CONCURRENT, within_s=10)
            if behaviour == "stream":
                await eventually(lambda: all(reader.deltas for reader in readers))
            pool._add(other.url)
            other.not_ready = None
            await eventually(lambda: bool(pool.status()["replicas"][1]["ready"]))
            stopped.stop()
            stopped_at = time.monotonic()
            await asyncio.sleep(STALL_S - SLACK_S)
            assert not any(reader.ended for reader in readers)
            await eventually(
                lambda: all(reader.ended for reader in readers),
                within_s=GIVEN_UP_WITHIN_S + SLACK_S,
            )
            assert all(isinstance(reader.error, ReplicaFailed) for reader in readers)
            assert max(reader.ended or 0 for reader in readers) - stopped_at >= STALL_S
            assert pool.status()["replicas"][0]["outstanding"] == 0
            assert not other.requests
            assert (pool.counts.stalled, pool.counts.failed) == (CONCURRENT, 0)


async def test_what_it_has_not_begun_goes_elsewhere(
    start_process: StartProcess, start_replica: Callable[[], FakeGenerate]
) -> None:
    """Also once it goes on, it finds nothing to begin."""
    with start_process("answer") as stopped:
        other = start_replica()
        async with open_pool(stopped, other) as pool:
            stopped.stop()
            async with reading(pool, CONCURRENT) as readers:
                await eventually(
                    lambda: all(reader.ended for reader in readers),
                    within_s=OUT_WITHIN_S + SLACK_S,
                )
            assert [reader.error for reader in readers] == [None] * CONCURRENT
            assert all(reader.deltas == [FIRST, LAST] for reader in readers)
            assert len(other.requests) == CONCURRENT
            stopped.go_on()
            await eventually(lambda: bool(pool.status()["replicas"][0]["ready"]))
            assert stopped.received == 0


async def test_without_another_one_it_is_unavailable(start_process: StartProcess) -> None:
    with start_process("answer") as stopped:
        async with open_pool(stopped) as pool:
            stopped.stop()
            async with reading(pool, 4) as readers:
                await eventually(
                    lambda: all(reader.ended for reader in readers),
                    within_s=OUT_WITHIN_S + LATE_S + SLACK_S,
                )
            assert all(isinstance(reader.error, Unavailable) for reader in readers)


async def test_a_pause_that_is_short_ends_nothing(start_process: StartProcess) -> None:
    with start_process("stream") as replica:
        async with open_pool(replica, stall_s=5.0) as pool, reading(pool, 4) as readers:
            await eventually(lambda: all(reader.deltas for reader in readers))
            replica.stop()
            await eventually(lambda: not pool.has_ready_replica())
            replica.go_on()
            await eventually(pool.has_ready_replica)
            before = [len(reader.deltas) for reader in readers]
            await eventually(
                lambda: all(
                    len(reader.deltas) > count
                    for reader, count in zip(readers, before, strict=True)
                )
            )
            assert not any(reader.ended for reader in readers)


async def test_a_slow_replica_that_answers_its_probes_keeps_its_requests(
    replica: FakeGenerate,
) -> None:
    replica.behaviour = hang_after()
    async with open_pool(replica, stall_s=0.1) as pool, reading(pool, 4) as readers:
        await asyncio.sleep(2 * PROBE_INTERVAL_S + PROBE_TIMEOUT_S)
        replica.probe_delay_s = PROBE_TIMEOUT_S / 2
        await asyncio.sleep(2 * PROBE_INTERVAL_S + PROBE_TIMEOUT_S)
        assert not any(reader.ended for reader in readers)
        assert pool.has_ready_replica()


async def test_a_busy_render_service_does_not_take_a_replica_for_silent(
    replica: FakeGenerate,
) -> None:
    async def be_busy() -> None:
        while True:
            time.sleep(0.3 * PROBE_TIMEOUT_S)  # noqa: ASYNC251
            await asyncio.sleep(0)

    async with open_pool(replica) as pool:
        probes = replica.probes
        busy = asyncio.create_task(be_busy())
        out = 0
        while replica.probes < probes + 2:
            out += not pool.has_ready_replica()
            await asyncio.sleep(0)
        busy.cancel()
    assert out == 0


async def test_a_drained_replica_keeps_its_requests(replica: FakeGenerate) -> None:
    """It takes no more connections, and says so, while it finishes what it has."""
    replica.behaviour = hang_after(FIRST)
    async with open_pool(replica, stall_s=0.1) as pool, reading(pool, 2) as readers:
        await eventually(lambda: all(reader.deltas for reader in readers))
        for listener in replica._server.servers:
            replica._loop.call_soon_threadsafe(listener.close)
        await eventually(lambda: not pool.has_ready_replica())
        await asyncio.sleep(2 * PROBE_INTERVAL_S)
        assert not any(reader.ended for reader in readers)


async def test_a_removed_replica_is_watched_until_its_requests_are_done(
    start_process: StartProcess,
) -> None:
    with start_process("stream") as replica:
        async with open_pool(replica) as pool, reading(pool, 2) as readers:
            await eventually(lambda: all(reader.deltas for reader in readers))
            pool._remove(pool._replicas[0])
            replica.stop()
            await eventually(
                lambda: all(reader.ended for reader in readers),
                within_s=GIVEN_UP_WITHIN_S + SLACK_S,
            )
            await eventually(lambda: not pool._probing)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EHOSTUNREACH, NoAnswer), (errno.ENETUNREACH, NoAnswer), (errno.ECONNREFUSED, NotReady)],
)
async def test_what_the_network_says_is_silence(
    transport: GenerateTransport, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[NotReady]
) -> None:
    async def connect(*_: object, **__: object) -> object:
        raise OSError(number, "no way")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    with pytest.raises(NotReady) as caught:
        await transport.probe("http://10.0.0.1:1")
    assert type(caught.value) is kind
