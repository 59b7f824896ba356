import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from render_service import replicas
from render_service.agreement import differences
from render_service.replicas import PoolCounts, ReplicaPool
from render_service.transport import GenerateTransport, NotReady
from shared_protocol.answer import TokenDelta
from shared_protocol.errors import (
    InternalError,
    InvalidRequest,
    MissingFeatures,
    ReplicaFailed,
    TandemError,
    Unavailable,
)
from shared_protocol.serving_info import INFO_PATH, ServingInfo
from tests.processes import free_port
from tests.render_service.fake_generate import (
    FIRST,
    INFO,
    LAST,
    NO_AUTHORITIES,
    Behaviour,
    FakeGenerate,
    PlainRequest,
    answer,
    answer_bytes,
    eventually,
    hang_after,
    refuse,
    reset_after,
)

pytestmark = pytest.mark.anyio

REQUEST = PlainRequest(b"a request")
OTHER_INFO = replace(INFO, dtype="bfloat16", max_model_len=512)

StartReplica = Callable[[], FakeGenerate]


@asynccontextmanager
async def open_pool(
    *members: FakeGenerate | str,
    expected: ServingInfo | None = INFO,
    probe_interval_s: float = 1.0,
    ready: bool = True,
) -> AsyncIterator[ReplicaPool]:
    """A pool of `members`; with `ready`, all of them are in rotation at first."""
    urls = [member if isinstance(member, str) else member.url for member in members]
    async with (
        GenerateTransport(ssl_context=NO_AUTHORITIES) as transport,
        ReplicaPool(urls, transport, expected=expected, probe_interval_s=probe_interval_s) as pool,
    ):
        if ready:
            await eventually(lambda: all(in_rotation(pool)))
        yield pool


def column(pool: ReplicaPool, name: str) -> list[Any]:
    return [replica[name] for replica in pool.status()["replicas"]]


def in_rotation(pool: ReplicaPool) -> list[bool]:
    return column(pool, "ready")


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def ask(pool: ReplicaPool) -> list[TokenDelta]:
    async with pool.generate(REQUEST) as deltas:
        return [delta async for delta in deltas]


# Which replica


async def test_concurrent_requests_spread_evenly(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica(), start_replica()]
    for member in members:
        member.behaviour = hang_after(FIRST)
    async with open_pool(*members) as pool:
        tasks = [asyncio.create_task(ask(pool)) for _ in range(200)]
        await eventually(lambda: sum(len(m.requests) for m in members) == 200, within_s=20)
        assert sorted(len(member.requests) for member in members) == [66, 67, 67]
        assert sorted(column(pool, "outstanding")) == [66, 67, 67]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert column(pool, "outstanding") == [0, 0, 0]
        await eventually(lambda: sum(member.disconnects for member in members) == 200, within_s=1)


async def test_200_concurrent_answers(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica()]
    for member in members:
        member.behaviour = answer(FIRST, FIRST, LAST, delay_s=0.05)
    async with open_pool(*members) as pool:
        answers = await asyncio.gather(*(ask(pool) for _ in range(200)))
        assert answers == [[FIRST, FIRST, LAST]] * 200
        assert column(pool, "outstanding") == [0, 0]
    assert abs(len(members[0].requests) - len(members[1].requests)) <= 2


async def test_a_slow_replica_gets_less(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica()]
    for member in members:
        member.behaviour = hang_after(FIRST)
    async with open_pool(*members) as pool, pool.generate(REQUEST):
        slow, fast = sorted(members, key=lambda member: len(member.requests), reverse=True)
        fast.behaviour = answer(FIRST, LAST)
        for _ in range(20):
            await ask(pool)
    assert (len(slow.requests), len(fast.requests)) == (1, 20)


async def test_what_still_runs_can_be_ended(start_replica: StartReplica) -> None:
    member = start_replica()
    member.behaviour = hang_after(FIRST)
    async with open_pool(member) as pool, pool.generate(REQUEST) as deltas:
        assert await anext(deltas) == FIRST
        pool.end_requests()
        with pytest.raises(ReplicaFailed):
            await anext(deltas)
    assert pool.counts == PoolCounts()


async def test_one_after_the_other_reaches_all(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica()]
    async with open_pool(*members) as pool:
        for _ in range(50):
            await ask(pool)
    assert all(member.requests for member in members)


# Nobody began it


async def test_with_one_replica_dead_every_request_succeeds(start_replica: StartReplica) -> None:
    alive, dead = start_replica(), start_replica()
    async with open_pool(alive, dead) as pool:
        await ask(pool)
        dead.kill()
        answers = await asyncio.gather(*(ask(pool) for _ in range(50)))
        assert answers == [[FIRST, LAST]] * 50
        await eventually(lambda: in_rotation(pool) == [True, False])


async def test_a_replica_that_does_not_accept_leaves_the_rotation_at_once(
    start_replica: StartReplica,
) -> None:
    alive, dead = start_replica(), start_replica()
    async with open_pool(alive, dead, probe_interval_s=60) as pool:
        dead.kill()
        await asyncio.gather(*(ask(pool) for _ in range(2)))
        assert in_rotation(pool) == [True, False]
        assert "could not connect" in column(pool, "reason")[1]


@pytest.mark.parametrize("status", [503, 429])
async def test_a_refused_request_goes_to_the_next(start_replica: StartReplica, status: int) -> None:
    members = [start_replica(), start_replica(), start_replica()]
    for member in members[:2]:
        member.behaviour = refuse(status, "The queue is full")
    async with open_pool(*members) as pool:
        answers = await asyncio.gather(*(ask(pool) for _ in range(20)))
        assert answers == [[FIRST, LAST]] * 20
        assert column(pool, "outstanding") == [0, 0, 0]
    assert len(members[2].requests) == 20


async def test_everybody_refuses(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica()]
    for member, retry_after in zip(members, ["9", "4"], strict=True):
        member.behaviour = refuse(503, "The queue is full", retry_after=retry_after)
    async with open_pool(*members) as pool:
        with pytest.raises(Unavailable) as caught:
            await ask(pool)
        assert column(pool, "outstanding") == [0, 0]
        assert pool.counts == PoolCounts(sent_on=1)
    assert caught.value.headers() == {"Retry-After": "4"}
    assert [len(member.requests) for member in members] == [1, 1]


async def test_everybody_is_down() -> None:
    async with open_pool(nobody(), nobody(), ready=False) as pool:
        assert not pool.has_ready_replica()
        with pytest.raises(Unavailable) as caught:
            await ask(pool)
        assert caught.value.headers() == {"Retry-After": "1"}
        await eventually(lambda: all("ConnectionRefusedError" in r for r in column(pool, "reason")))
        assert not pool.status()["ready"]


# Somebody began it


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(reset_after(), id="before the status"),
        pytest.param(reset_after(FIRST), id="while streaming"),
        pytest.param(answer(FIRST), id="no last delta"),
        pytest.param(answer_bytes(b"<html>"), id="garbage"),
    ],
)
async def test_a_lost_request_was_seen_by_one_replica(
    start_replica: StartReplica, behaviour: Behaviour
) -> None:
    members = [start_replica(), start_replica()]
    for member in members:
        member.behaviour = behaviour
    async with open_pool(*members, probe_interval_s=60) as pool:
        with pytest.raises(ReplicaFailed):
            await ask(pool)
        assert sorted(len(member.requests) for member in members) == [0, 1]
        assert sorted(in_rotation(pool)) == [False, True]
        assert column(pool, "outstanding") == [0, 0]
        assert pool.counts == PoolCounts(failed=1)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (refuse(400, "too long"), InvalidRequest),
        (refuse(409, "send it", missing_hashes=["aa"]), MissingFeatures),
        (refuse(500, "oh"), InternalError),
    ],
)
async def test_an_error_is_the_answer(
    start_replica: StartReplica, behaviour: Behaviour, kind: type[TandemError]
) -> None:
    members = [start_replica(), start_replica()]
    for member in members:
        member.behaviour = behaviour
    async with open_pool(*members) as pool:
        with pytest.raises(kind):
            await ask(pool)
        assert in_rotation(pool) == [True, True]
        assert column(pool, "outstanding") == [0, 0]
    assert sorted(len(member.requests) for member in members) == [0, 1]


# Leaving early


@pytest.mark.parametrize("behaviour", [hang_after(), hang_after(FIRST)], ids=["wait", "stream"])
async def test_cancelling_closes_the_connection(
    replica: FakeGenerate, behaviour: Behaviour
) -> None:
    replica.behaviour = behaviour
    async with open_pool(replica) as pool:
        task = asyncio.create_task(ask(pool))
        await eventually(lambda: len(replica.requests) == 1)
        assert column(pool, "outstanding") == [1]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert column(pool, "outstanding") == [0]
        await eventually(lambda: replica.disconnects == 1, within_s=1)
        assert in_rotation(pool) == [True]


async def test_an_error_of_the_consumer_is_not_the_replicas(replica: FakeGenerate) -> None:
    async with open_pool(replica) as pool:

        async def consume() -> None:
            async with pool.generate(REQUEST) as deltas:
                await anext(deltas)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await consume()
        assert column(pool, "outstanding") == [0]
        assert in_rotation(pool) == [True]
    assert len(replica.requests) == 1


async def test_nothing_is_left_behind(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica()]
    tasks = asyncio.all_tasks()
    async with open_pool(*members, nobody(), probe_interval_s=0.05, ready=False) as pool:
        await pool.wait_for_first(1)
        members[0].behaviour = reset_after(FIRST)
        await asyncio.gather(*(ask(pool) for _ in range(20)), return_exceptions=True)
    await eventually(lambda: asyncio.all_tasks() == tasks)
    await eventually(lambda: all(member.connections == 0 for member in members))


# Into and out of rotation


async def test_one_that_fails_in_turns_takes_one_line_of_the_log(
    replica: FakeGenerate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one behind a proxy: refused, reset or closed by chance, three times a second."""
    caplog.set_level(logging.WARNING, logger=replicas.__name__)
    async with open_pool(replica, probe_interval_s=0.01) as pool:
        ways = itertools.cycle(("ReadError", "ConnectionRefusedError", "closed by the server"))
        probes = 0

        async def probe(*_: object) -> Any:
            nonlocal probes
            probes += 1
            raise NotReady(f"no answer on {INFO_PATH} ({next(ways)})")

        monkeypatch.setattr(GenerateTransport, "probe", probe)
        await eventually(lambda: probes > 6)
        assert in_rotation(pool) == [False]
    assert len(caplog.records) == 1


async def test_a_replica_comes_back_within_a_second(replica: FakeGenerate) -> None:
    async with open_pool(replica) as pool:
        replica.not_ready = "The engine is starting"
        await eventually(lambda: not pool.has_ready_replica(), within_s=1.5)
        assert column(pool, "reason") == ["/inference/v1/info answered 503: The engine is starting"]
        replica.not_ready = None
        await eventually(pool.has_ready_replica, within_s=1.5)
        assert await ask(pool) == [FIRST, LAST]


async def test_a_restarted_replica_comes_back(replica: FakeGenerate) -> None:
    async with open_pool(replica, probe_interval_s=0.2) as pool:
        replica.kill()
        await eventually(lambda: not pool.has_ready_replica())
        replica.start()
        await eventually(pool.has_ready_replica)
        assert await ask(pool) == [FIRST, LAST]


async def test_a_replica_that_refuses_for_its_load_comes_behind_the_others(
    start_replica: StartReplica,
) -> None:
    busy, other = start_replica(), start_replica()
    busy.behaviour = refuse(503, "The queue is full")
    async with open_pool(busy, other, probe_interval_s=60) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(20)))
        asked = len(busy.requests)
        for _ in range(20):
            await ask(pool)
        # It is well, and would be asked if there were nobody else.
        assert in_rotation(pool) == [True, True]
        # A probe in between gives it another chance.
        assert len(busy.requests) <= asked + 2


async def test_the_only_replica_stays_in_rotation_when_it_is_busy(replica: FakeGenerate) -> None:
    async with open_pool(replica) as pool:
        replica.behaviour = refuse(429, "The queue is full")
        with pytest.raises(Unavailable):
            await ask(pool)
        assert pool.has_ready_replica()
        replica.behaviour = answer(FIRST, LAST)
        assert await ask(pool) == [FIRST, LAST]


@pytest.mark.parametrize("status", [401, 403, 408])
async def test_what_is_no_fault_of_the_client_goes_to_the_next(
    start_replica: StartReplica, status: int
) -> None:
    members = [start_replica(), start_replica()]
    members[0].behaviour = refuse(status, "Who are you?")
    async with open_pool(*members, probe_interval_s=60) as pool:
        for _ in range(10):
            assert await ask(pool) == [FIRST, LAST]


async def test_refusals_do_not_cause_a_storm_of_probes(replica: FakeGenerate) -> None:
    async with open_pool(replica) as pool:
        replica.behaviour = refuse(503, "The queue is full")
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            await asyncio.gather(ask(pool), return_exceptions=True)
            await asyncio.sleep(0.001)
    assert replica.probes <= 12


async def test_a_probe_from_before_a_failure_proves_nothing(replica: FakeGenerate) -> None:
    async with open_pool(replica, probe_interval_s=0.5) as pool:
        replica.behaviour = reset_after()
        replica.probe_delay_s = 0.3
        probes = replica.probes
        await eventually(lambda: replica.probes > probes)
        with pytest.raises(ReplicaFailed):
            await ask(pool)
        await asyncio.sleep(0.32)
        assert not pool.has_ready_replica()
        await eventually(pool.has_ready_replica)


async def test_a_change_is_logged_once(
    replica: FakeGenerate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=replicas.__name__)
    async with open_pool(replica, probe_interval_s=0.05) as pool:
        replica.not_ready = "draining"
        await eventually(lambda: not pool.has_ready_replica())
        probes = replica.probes
        await eventually(lambda: replica.probes > probes + 3)
    assert [record.getMessage() for record in caplog.records] == [
        f"{replica.url} is in rotation",
        f"{replica.url} is out of rotation: /inference/v1/info answered 503: draining",
    ]


async def test_an_unexpected_fault_does_not_end_the_probing(
    replica: FakeGenerate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with open_pool(replica, probe_interval_s=0.05) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(GenerateTransport, "probe", fail)
            await eventually(lambda: column(pool, "reason") == ["its probe failed"])
        await eventually(pool.has_ready_replica)
    assert "ZeroDivisionError" in caplog.text


# What replicas serve


async def test_a_replica_that_serves_something_else_stays_out(
    start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger=replicas.__name__)
    right, wrong = start_replica(), start_replica()
    wrong.info = OTHER_INFO
    async with open_pool(right, wrong, probe_interval_s=0.05, ready=False) as pool:
        await eventually(lambda: in_rotation(pool) == [True, False] and wrong.probes > 3)
        for _ in range(10):
            await ask(pool)
        assert not wrong.requests
        assert column(pool, "reason") == [
            None,
            "serves something else: dtype: ours 'float32', theirs 'bfloat16'; "
            "max_model_len: ours 1024, theirs 512",
        ]
        assert caplog.text.count("bfloat16") == 1
        # Another process behind the same URL, which was never seen to be away.
        wrong.info, right.info = INFO, OTHER_INFO
        await eventually(lambda: in_rotation(pool) == [False, True])


async def test_what_is_expected_may_be_known_later(start_replica: StartReplica) -> None:
    members = [start_replica(), start_replica()]
    members[1].info = OTHER_INFO
    async with open_pool(*members, expected=None, probe_interval_s=60) as pool:
        pool.expect(INFO)
        assert in_rotation(pool) == [True, False]


async def test_waiting_for_the_first_replica(
    start_replica: StartReplica,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(replicas, "_PROGRESS_INTERVAL_S", 0.1)
    caplog.set_level(logging.INFO, logger=replicas.__name__)
    starting, down = start_replica(), nobody()
    starting.not_ready = "The engine is starting"
    pool_open = open_pool(starting, down, expected=None, probe_interval_s=0.05, ready=False)
    async with pool_open as pool:
        waiting = asyncio.create_task(pool.wait_for_first(5))
        progress = (
            f"{starting.url}: /inference/v1/info answered 503: The engine is starting; {down}: "
        )
        await eventually(lambda: f"waiting for a generate replica: {progress}" in caplog.text)
        starting.not_ready = None
        assert await waiting == INFO


async def test_waiting_for_the_first_replica_ends() -> None:
    url = nobody()
    async with open_pool(url, expected=None, ready=False) as pool:
        refused = f"no generate replica .* {url}: .*ConnectionRefusedError"
        with pytest.raises(TimeoutError, match=refused):
            await pool.wait_for_first(0.2)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({}, []),
        (
            {
                "model": "/elsewhere",
                "served_model_names": ["another"],
                "max_num_seqs": 1,
                "supported_tasks": [],
                "protocol_version": "1.7",
            },
            [],
        ),
        ({"vocab_size": 2}, ["vocab_size: ours 512, theirs 2"]),
        ({"max_model_len": 2048}, ["max_model_len: ours 1024, theirs 2048"]),
        ({"protocol_version": "2.0"}, ["protocol_version: ours '1.0', theirs '2.0'"]),
        (
            {"reasoning_parser": "qwen3", "architecture": "Qwen3"},
            [
                "architecture: ours 'LlamaForCausalLM', theirs 'Qwen3'",
                "reasoning_parser: ours '', theirs 'qwen3'",
            ],
        ),
        (
            {
                "structured_outputs_options": ["enable_in_reasoning"],
                "reasoning_token_ids": [[1], [2], [2]],
            },
            [
                "structured_outputs_options: ours [], theirs ['enable_in_reasoning']",
                "reasoning_token_ids: ours [], theirs [[1], [2], [2]]",
            ],
        ),
    ],
)
def test_differences(change: dict[str, Any], lines: list[str]) -> None:
    assert differences(INFO, replace(INFO, **change)) == lines


# URLs


@pytest.mark.parametrize("urls", [[], ["http://a:1", "http://a:1/"]])
async def test_urls_that_make_no_pool(transport: GenerateTransport, urls: list[str]) -> None:
    with pytest.raises(ValueError, match="at least one replica, and each one once"):
        ReplicaPool(urls, transport)


async def test_credentials_are_not_shown(
    replica: FakeGenerate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = replica.url.replace("http://", "http://render:secret@")
    async with open_pool(secret, probe_interval_s=0.05) as pool:
        replica.behaviour = reset_after(FIRST)
        with pytest.raises(ReplicaFailed):
            await ask(pool)
        replica.kill()
        await eventually(lambda: "ConnectionRefusedError" in str(pool.status()))
        assert column(pool, "url") == [replica.url]
        assert "secret" not in str(pool.status())
    assert "secret" not in caplog.text
