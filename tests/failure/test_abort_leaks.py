"""Of 2,000 requests whose clients leave, nothing stays in any process of the pair."""

import asyncio
import json
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
import psutil
import pytest

from tests.checkpoints import checkpoint
from tests.conftest import FLAGS, SERVED_NAME
from tests.failure.engine_metrics import metric
from tests.pair import Pair
from tests.pictures import data_url, png
from tests.processes import Server, free_port

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.anyio]

logger = logging.getLogger(__name__)

QUARTER = 500
# Three times what the engine runs at once: most requests are in its queue at some time.
CONCURRENCY = 24
# What a type of objects may grow by in 1,500 requests: some depend on the moment.
OBJECTS = 25
# A request that is kept whole, or its connection, is much larger. It would be kept in each quarter;
# pools, caches and the allocator's arenas grow in some.
BYTES_PER_REQUEST = 2048
# What the HTTP clients of the two probes have open for moments.
DESCRIPTORS = 6

CACHES = (
    # Full before the first quarter is over: it holds about 8 of the images below.
    "--mm-processor-cache-gb=0.0001",
)
ENGINE = (
    # As that cache of the render service's.
    "--held-items-bytes=100000",
    # A prefill of several steps.
    "--max-num-batched-tokens=128",
    # A cache that is soon used in full: memory is taken when it is first written to.
    "--num-gpu-blocks-override=512",
)


class CountedPair:
    """A pair whose services tell what they hold; see `tests.failure.census`."""

    def __init__(self, pair: Pair) -> None:
        (replica,) = pair.replicas
        self.pair = pair
        self.services: dict[str, Server] = {"render": pair.render, "generate": replica}
        self.census_ports = {name: _counted(service) for name, service in self.services.items()}
        self.generate_url = replica.url

    def census(self, name: str) -> dict[str, int]:
        with socket.create_connection(("127.0.0.1", self.census_ports[name])) as connection:
            content = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        counts: dict[str, int] = json.loads(content)
        return counts

    def processes(self) -> dict[str, psutil.Process]:
        generate = psutil.Process(self.services["generate"].pid)
        engines = [p for p in generate.children(recursive=True) if "EngineCore" in p.name()]
        assert engines, [p.name() for p in generate.children(recursive=True)]
        return {
            "render": psutil.Process(self.services["render"].pid),
            "generate": generate,
            "engine": engines[0],
        }


def _counted(service: Server) -> int:
    port = free_port()
    module = service.command.index("-m") + 1
    service.command[module:module] = ["tests.failure.census", str(port)]
    return port


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedPair]:
    logs = tmp_path_factory.mktemp("logs")
    pair = Pair(
        checkpoint("gemma3"),
        logs=logs,
        flags=[*FLAGS, *CACHES],
        generate_flags=ENGINE,
        # As many clients as the machine can bear are no outage.
        render_flags=["--connect-timeout-s=30"],
    )
    counted = CountedPair(pair)
    with pair:
        yield counted


@dataclass(frozen=True)
class Departure:
    """How one client goes.

    Attributes:
        events: events of the stream that it waits for; None if it goes by the clock.
        delay_s: how long it stays after that.
        sent: the share of the request that it sends.
        reset: whether it resets the connection rather than closes it.
    """

    path: str
    body: dict[str, Any]
    events: int | None
    delay_s: float
    sent: float = 1.0
    reset: bool = False


CHAT: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}


def messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def departures(draw: random.Random) -> Iterator[Departure]:
    """Each way in turn, with a prompt of its own, that no cache holds."""
    ways = [
        *(_uploading, _with_an_image, _in_a_prefill, _waiting, _in_a_stream, _of_several_choices),
        *(_of_a_response, _of_a_message, _of_completions),
    ]
    while True:
        for way in ways:
            yield way(draw, f"{draw.randint(0, 10**9)} is a number")


def _uploading(draw: random.Random, text: str) -> Departure:
    chat = messages(text * 20)
    return Departure("/v1/chat/completions", chat, None, 0.0, draw.random(), reset(draw))


def _with_an_image(draw: random.Random, text: str) -> Departure:
    picture = {"type": "image_url", "image_url": {"url": data_url(png(draw.randint(0, 10**6)))}}
    content = [{"type": "text", "text": text}, picture]
    chat = {**CHAT, "messages": [{"role": "user", "content": content}]}
    delay_s = draw.uniform(0.0, 0.3)
    return Departure("/v1/chat/completions", chat, None, delay_s, reset=reset(draw))


def _in_a_prefill(draw: random.Random, text: str) -> Departure:
    chat = {**CHAT, **messages(f"{text} " + "fox " * 200)}
    delay_s = draw.uniform(0.0, 0.3)
    return Departure("/v1/chat/completions", chat, None, delay_s, reset=reset(draw))


def _waiting(draw: random.Random, text: str) -> Departure:
    chat = {**CHAT, **messages(text)}
    delay_s = draw.uniform(0.0, 0.6)
    return Departure("/v1/chat/completions", chat, None, delay_s, reset=reset(draw))


def _in_a_stream(draw: random.Random, text: str) -> Departure:
    return _streamed(draw, "/v1/chat/completions", {**CHAT, **messages(text)})


def _of_several_choices(draw: random.Random, text: str) -> Departure:
    chat = {**CHAT, **messages(text), "n": 3, "temperature": 0.8}
    return _streamed(draw, "/v1/chat/completions", chat)


def _of_a_response(draw: random.Random, text: str) -> Departure:
    return _streamed(draw, "/v1/responses", {"input": text, "max_output_tokens": 900})


def _of_a_message(draw: random.Random, text: str) -> Departure:
    return _streamed(draw, "/v1/messages", {**messages(text), "max_tokens": 900})


def _of_completions(draw: random.Random, text: str) -> Departure:
    return _streamed(draw, "/v1/completions", {**CHAT, "prompt": [text, f"{text} too"]})


def _streamed(draw: random.Random, path: str, body: dict[str, Any]) -> Departure:
    streamed = {**body, "stream": True}
    return Departure(path, streamed, draw.randint(1, 8), draw.uniform(0.0, 0.05), 1.0, reset(draw))


def reset(draw: random.Random) -> bool:
    return draw.random() < 0.5


async def depart(url: httpx.URL, departure: Departure) -> bool:
    """Send the request and go; False if there was no answer, or its end came before that."""
    content = json.dumps({"model": SERVED_NAME, **departure.body}).encode()
    head = (
        f"POST {departure.path} HTTP/1.1\r\nHost: {url.host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(head.encode() + content[: int(len(content) * departure.sent)])
    try:
        await writer.drain()
        async with asyncio.timeout(120.0):
            if not await received(reader, departure.events):
                return False
            await asyncio.sleep(departure.delay_s)
    except asyncio.IncompleteReadError:
        return False
    finally:
        if departure.reset:
            writer.transport.abort()
        else:
            writer.close()
    return True


async def received(reader: asyncio.StreamReader, events: int | None) -> bool:
    """Read so many events; False if there is no stream, as no replica takes requests."""
    if events is None:
        return True
    status = await reader.readuntil(b"\r\n\r\n")
    if status.startswith(b"HTTP/1.1 503"):
        await asyncio.sleep(1.0)
        return False
    assert status.startswith(b"HTTP/1.1 200"), status + await reader.read()
    for _ in range(events):
        await reader.readuntil(b"data: ")
    return True


async def abort(url: str, ways: Iterator[Departure], count: int) -> None:
    """Have `count` clients leave."""
    left = 0

    async def client() -> None:
        nonlocal left
        while left < count:
            # Not `left += await ...`, which would add to what it was before the others.
            has_left = await depart(httpx.URL(url), next(ways))
            left += has_left

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(client())


async def watch(measure: Callable[[], Awaitable[float]]) -> float:
    """The largest value until it is cancelled."""
    largest = 0.0
    try:
        while True:
            largest = max(largest, await measure())
            await asyncio.sleep(0.2)
    except asyncio.CancelledError:
        return largest


@dataclass(frozen=True)
class Holdings:
    """What the processes hold.

    Attributes:
        memory: resident bytes of each process.
        descriptors: open files and sockets of each process.
        objects: of each service, by type.
    """

    memory: dict[str, int]
    descriptors: dict[str, int]
    objects: dict[str, dict[str, int]]


async def take_stock(counted: CountedPair) -> Holdings:
    """Wait until nothing runs, then look several times: what is there by chance goes again."""
    await idle(counted)
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        # Idle connections to the generate service expire, and the next request closes them.
        await asyncio.sleep(16.0)
        asked = {"model": SERVED_NAME, "prompt": "a", "max_tokens": 1}
        answer = await client.post(f"{counted.pair.url}/v1/completions", json=asked, timeout=60.0)
        assert answer.status_code == 200
    looks = []
    for _ in range(4):
        await asyncio.sleep(0.7)
        processes = counted.processes()
        looks.append(
            Holdings(
                {name: process.memory_info().rss for name, process in processes.items()},
                {name: process.num_fds() for name, process in processes.items()},
                {name: await asyncio.to_thread(counted.census, name) for name in counted.services},
            )
        )
    return Holdings(
        looks[-1].memory,
        {name: min(look.descriptors[name] for look in looks) for name in looks[0].descriptors},
        {
            name: {
                kind: min(look.objects[name].get(kind, 0) for look in looks)
                for kind in looks[0].objects[name]
            }
            for name in counted.services
        },
    )


async def idle(counted: CountedPair) -> None:
    async with asyncio.timeout(10.0), httpx.AsyncClient(trust_env=False, verify=False) as client:
        while await busy(counted) or await outstanding(client, counted):
            await asyncio.sleep(0.1)


async def busy(counted: CountedPair) -> float:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum([await metric(counted.generate_url, name) for name in names])


async def outstanding(client: httpx.AsyncClient, counted: CountedPair) -> int:
    replicas = (await client.get(f"{counted.pair.url}/ready")).json()["replicas"]
    return sum(replica["outstanding"] for replica in replicas)


async def test_clients_that_leave_leave_nothing_behind(
    counted: CountedPair, record_property: Callable[[str, object], None]
) -> None:
    ways = departures(random.Random(20261130))
    waiting = asyncio.create_task(
        watch(lambda: metric(counted.generate_url, "vllm:num_requests_waiting"))
    )
    stocks = []
    for _ in range(4):
        await abort(counted.pair.url, ways, QUARTER)
        stocks.append(await take_stock(counted))
    waiting.cancel()

    first, last = stocks[0], stocks[-1]
    growth = {
        name: [(b.memory[name] - a.memory[name]) / QUARTER for a, b in pairwise(stocks)]
        for name in last.memory
    }
    more_descriptors = {
        name: last.descriptors[name] - first.descriptors[name] for name in last.descriptors
    }
    more_objects = {
        f"{name} {kind}": (before, after)
        for name, counts in last.objects.items()
        for kind, after in counts.items()
        if after - (before := first.objects[name].get(kind, 0)) > OBJECTS
    }
    for name, value in {
        "bytes per request": growth,
        "memory": last.memory,
        "descriptors": last.descriptors,
        "largest queue": await waiting,
        "tasks": {
            name: {kind: count for kind, count in counts.items() if kind.startswith("task ")}
            for name, counts in last.objects.items()
        },
    }.items():
        logger.info("%s: %s", name, value)
        record_property(name, value)
    assert await waiting > 0
    assert not more_objects
    assert all(more <= DESCRIPTORS for more in more_descriptors.values()), more_descriptors
    assert all(min(more) <= BYTES_PER_REQUEST for more in growth.values()), growth
