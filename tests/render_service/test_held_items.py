"""Items that a replica holds are sent to it once."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from render_service.item_names import HeldNames, ItemNames
from render_service.outgoing_request import OutgoingRequest
from render_service.replicas import ReplicaPool
from shared_protocol.binary_codec import decode_binary, encode_parts
from shared_protocol.errors import MissingFeatures
from shared_protocol.frames import encode_frame
from shared_protocol.held_items import HELD_ITEMS_HEADER
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.render_service.fake_generate import (
    FIRST,
    LAST,
    Behaviour,
    Exchange,
    FakeGenerate,
    answer,
    refuse,
)
from tests.render_service.test_replicas import open_pool

pytestmark = pytest.mark.anyio

StartReplica = Callable[[], FakeGenerate]


class Picture:
    """As vLLM's item: compared by what it holds, and without a hash."""

    def __init__(self, byte: int) -> None:
        self.byte = byte

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.byte == other.byte

    __hash__ = None  # type: ignore[assignment]

    def encoded(self) -> MultiModalItem:
        tensor = TensorRef("uint8", (4,), bytes([self.byte] * 4))
        return MultiModalItem({"pixel_values": ItemElement(tensor, BatchedField())})


def outgoing(names: ItemNames, *pictures: Picture) -> OutgoingRequest:
    count = len(pictures)
    wire = GenerateRequest(
        request_id="r",
        token_ids=[1] * 2 * count,
        sampling_params={},
        features=Features(
            mm_hashes={"image": ["a client's choice"] * count},
            mm_placeholders={"image": [PlaceholderRange(2 * i, 1) for i in range(count)]},
            kwargs_data={"image": [picture.encoded() for picture in pictures]},
        ),
    )
    return OutgoingRequest(wire, {"image": pictures}, names, encode_parts)


def naming(header: str) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.start(headers={HELD_ITEMS_HEADER: header})
        for frame in (FIRST, LAST):
            await exchange.body(encode_frame(frame))
        await exchange.body(b"", more=False)

    return behave


async def ask(pool: ReplicaPool, request: OutgoingRequest) -> None:
    async with pool.generate(request) as deltas:
        assert [delta async for delta in deltas] == [FIRST, LAST]


def received(replica: FakeGenerate) -> list[tuple[list[int | None], list[str | None]]]:
    """Of each request the bytes of the images that came, and the names of those that did not."""
    rows = []
    for request in replica.requests:
        features = decode_binary(bytearray(request.body)).features
        assert features is not None
        assert features.kwargs_data is not None
        items: list[Any] = features.kwargs_data["image"]
        came = [item and item.elements["pixel_values"].data.data[0] for item in items]
        rows.append((came, (features.held_items or {"image": []})["image"]))
    return rows


async def test_what_is_held_is_named(start_replica: StartReplica) -> None:
    replica, names = start_replica(), ItemNames()
    one, two, three = (Picture(byte) for byte in (1, 2, 3))
    async with open_pool(replica) as pool:
        replica.behaviour = naming("one,two")
        await ask(pool, outgoing(names, one, two))
        replica.behaviour = naming("three")
        await ask(pool, outgoing(names, two, three, one))
        await ask(pool, outgoing(names, three))
    assert received(replica) == [
        ([1, 2], []),
        ([None, 3, None], ["two", None, "one"]),
        ([None], ["three"]),
    ]


async def test_a_picture_is_known_by_itself_not_by_its_hash(start_replica: StartReplica) -> None:
    replica, names = start_replica(), ItemNames()
    one, same, other = Picture(1), Picture(1), Picture(2)
    async with open_pool(replica) as pool:
        replica.behaviour = naming("one")
        await ask(pool, outgoing(names, one))
        await ask(pool, outgoing(names, other))
        await ask(pool, outgoing(names, same))
    assert [came for came, _ in received(replica)] == [[1], [2], [1]]


async def test_each_replica_is_sent_it(start_replica: StartReplica) -> None:
    members, names, picture = [start_replica(), start_replica()], ItemNames(), Picture(1)
    async with open_pool(*members) as pool:
        for member in members:
            member.behaviour = naming("one")
        for _ in range(40):
            await ask(pool, outgoing(names, picture))
    for member in members:
        came = [row[0] for row in received(member)]
        assert came == [[1]] + [[None]] * (len(came) - 1)


async def test_what_is_not_held_any_more_is_sent_again(start_replica: StartReplica) -> None:
    replica, names = start_replica(), ItemNames()
    one, two = Picture(1), Picture(2)

    async def restarted(exchange: Exchange) -> None:
        replica.behaviour = naming("one,two")
        missing = refuse(409, "Send it", missing_hashes=["one"])
        await missing(exchange)

    async with open_pool(replica) as pool:
        replica.behaviour = naming("one,two")
        await ask(pool, outgoing(names, one, two))
        replica.behaviour = restarted
        await ask(pool, outgoing(names, one, two))
        assert pool.has_ready_replica()
        assert pool.counts.sent_on == 0
    assert [came for came, _ in received(replica)] == [[1, 2], [None, None], [1, 2]]


async def test_a_replica_that_misses_what_it_was_sent_is_asked_once(
    start_replica: StartReplica,
) -> None:
    replica = start_replica()
    replica.behaviour = refuse(409, "Send it", missing_hashes=["one"])
    async with open_pool(replica) as pool:
        with pytest.raises(MissingFeatures):
            await ask(pool, outgoing(ItemNames(), Picture(1)))
    assert len(replica.requests) == 1


async def test_two_that_name_what_is_not_held_any_more_are_both_answered(
    start_replica: StartReplica,
) -> None:
    replica, names, picture = start_replica(), ItemNames(), Picture(1)
    refused: list[Exchange] = []

    async def restarted(exchange: Exchange) -> None:
        """Refuse both at once, so that neither knows of the other's."""
        refused.append(exchange)
        while len(refused) < 2:
            await asyncio.sleep(0.001)
        replica.behaviour = naming("one")
        await refuse(409, "Send it", missing_hashes=["one"])(exchange)

    async with open_pool(replica) as pool:
        replica.behaviour = naming("one")
        await ask(pool, outgoing(names, picture))
        replica.behaviour = restarted
        await asyncio.gather(*(ask(pool, outgoing(names, picture)) for _ in range(2)))
    assert [came for came, _ in received(replica)] == [[1], [None], [None], [1], [1]]


@pytest.mark.parametrize("header", ["one", "one,two,three", ",", ""])
async def test_names_that_fit_no_items_are_not_used(
    start_replica: StartReplica, header: str
) -> None:
    replica, names = start_replica(), ItemNames()
    request = outgoing(names, Picture(1), Picture(2))
    async with open_pool(replica) as pool:
        replica.behaviour = naming(header)
        await ask(pool, request)
        replica.behaviour = answer(FIRST, LAST)
        await ask(pool, request)
    assert [came for came, _ in received(replica)] == [[1, 2], [1, 2]]


def test_a_name_lives_as_long_as_its_item() -> None:
    names = ItemNames()
    pictures = [Picture(byte) for byte in range(3)]
    for picture in pictures:
        names.set(picture, str(picture.byte))
    assert names.get(pictures[1]) == "1"
    del picture, pictures[1:]
    gc.collect()
    assert len(names) == 1
    assert names.get(Picture(1)) is None


def test_names_of_a_replica_are_bounded() -> None:
    held = HeldNames()
    held.add(str(number) for number in range(20_000))
    assert "0" not in held
    assert "19999" in held
    held.forget(["19999", "0"])
    assert "19999" not in held
