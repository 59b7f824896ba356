"""Items that came once, in requests that refer to them."""

from typing import Any

import httpx
import msgspec
import pytest

from generate_service.held_items import HeldItems
from generate_service.item_identity import item_name
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, encode_binary
from shared_protocol.errors import MissingFeatures
from shared_protocol.held_items import HELD_ITEMS_HEADER, MAX_NAMED, decode_names, encode_names
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.generate_service.fake_engine import three_tokens
from tests.generate_service.fake_service import PATH, serving

pytestmark = pytest.mark.anyio

NEVER_SENT = "0" * 64


def image(byte: int) -> MultiModalItem:
    tensor = TensorRef("uint8", (4,), bytes([byte] * 4))
    return MultiModalItem({"pixel_values": ItemElement(tensor, BatchedField())})


def name(byte: int) -> str:
    return item_name("image", image(byte))


def request(
    *images: MultiModalItem | str, modality: str = "image", **changes: Any
) -> GenerateRequest:
    """One with a name in place of each item that it refers to."""
    places = [PlaceholderRange(2 * index, 1) for index in range(len(images))]
    names = [given if isinstance(given, str) else None for given in images]
    features = Features(
        mm_hashes={modality: [f"sent-{index}" for index in range(len(images))]},
        mm_placeholders={modality: places},
        kwargs_data={modality: [None if isinstance(given, str) else given for given in images]},
        held_items={modality: names} if any(names) else None,
    )
    return GenerateRequest(
        request_id="r",
        token_ids=[1] * (2 * len(images)),
        sampling_params={},
        features=msgspec.structs.replace(features, **changes),
    )


def hold(held: HeldItems, *images: MultiModalItem, size: int) -> list[str | None]:
    sent = request(*images)
    names = {"image": [item_name("image", given) for given in images]}
    return held.hold(sent, names, size)


def recalled(held: HeldItems, sent: GenerateRequest) -> GenerateRequest:
    with held.one() as recall:
        return recall.whole(sent)


def items_of(whole: GenerateRequest) -> list[MultiModalItem | None]:
    assert whole.features is not None
    assert whole.features.kwargs_data is not None
    return whole.features.kwargs_data["image"]


def test_what_was_held_is_recalled_in_its_place() -> None:
    held = HeldItems(100)
    assert hold(held, image(1), image(2), size=10) == [name(1), name(2)]
    assert items_of(recalled(held, request(name(2), image(3), name(1)))) == [
        image(2),
        image(3),
        image(1),
    ]
    assert (held.recalled, held.missed, held.taken) == (2, 0, 10)


def test_the_least_recently_used_body_goes() -> None:
    held = HeldItems(30)
    for byte in (1, 2, 3):
        hold(held, image(byte), size=10)
    recalled(held, request(name(1)))
    hold(held, image(4), size=10)
    recalled(held, request(name(1), name(3), name(4)))
    with pytest.raises(MissingFeatures) as caught:
        recalled(held, request(name(1), name(2)))
    assert caught.value.hashes == [name(2)]
    assert (held.taken, held.missed) == (30, 1)


def test_an_item_that_comes_again_is_kept_once() -> None:
    held = HeldItems(30)
    for _ in range(5):
        assert hold(held, image(1), size=10) == [name(1)]
    assert held.taken == 10


def test_a_body_that_is_too_large_is_not_kept() -> None:
    held = HeldItems(30)
    hold(held, image(1), size=10)
    assert hold(held, image(2), size=31) == []
    recalled(held, request(name(1)))


def test_what_a_request_uses_is_kept_and_counted() -> None:
    held = HeldItems(20)
    hold(held, image(1), size=10)
    hold(held, image(2), size=10)
    with held.one() as recall:
        recall.whole(request(name(1)))
        recall.whole(request(name(1), name(2)))
        assert recall.size == 8
        # There is no room: what is in use would stay in memory without being counted.
        assert hold(held, image(3), image(1), size=10) == [None, name(1)]
        with pytest.raises(MissingFeatures):
            recalled(held, request(name(3)))
        recalled(held, request(name(1), name(2)))
    hold(held, image(3), size=10)
    recalled(held, request(name(3)))
    assert held.taken == 20


def test_embeddings_that_a_client_made_are_not_kept() -> None:
    held = HeldItems(100)
    supplied = MultiModalItem({"image_embeds": image(1).elements["pixel_values"]})
    assert hold(held, image(1), supplied, size=10) == [name(1), None]


async def post(client: httpx.AsyncClient, sent: GenerateRequest) -> httpx.Response:
    headers = {"content-type": BINARY_CONTENT_TYPE}
    return await client.post(PATH, content=encode_binary(sent), headers=headers)


async def test_a_request_by_name_reaches_the_engine_as_the_whole_one() -> None:
    async with serving(three_tokens) as (client, engine):
        first = await post(client, request(image(1), image(2)))
        assert decode_names(first.headers[HELD_ITEMS_HEADER]) == [name(1), name(2)]
        again = await post(client, request(name(1), name(2)))
        assert HELD_ITEMS_HEADER not in again.headers
        assert again.json()["choices"] == first.json()["choices"]
        whole, by_name = (sent.prompt for sent in engine.requests)
    assert by_name["mm_hashes"] == whole["mm_hashes"]
    kept = [element["mm_kwargs"]["image"][0]["pixel_values"].data for element in (whole, by_name)]
    assert kept[0].tolist() == kept[1].tolist() == [1] * 4


async def test_a_name_that_is_not_held_is_asked_for() -> None:
    async with serving(three_tokens) as (client, engine):
        await post(client, request(image(1)))
        answer = await post(client, request(name(1), NEVER_SENT))
        assert answer.status_code == 409
        assert answer.json()["error"]["missing_hashes"] == [NEVER_SENT]
        assert answer.json()["error"]["param"] == "features.kwargs_data"
        assert len(engine.requests) == 1


async def test_what_was_refused_is_not_held() -> None:
    async with serving(three_tokens) as (client, _):
        wrong = msgspec.structs.replace(request(image(1)), token_ids=[1000, 1])
        assert (await post(client, wrong)).status_code == 400
        assert (await post(client, request(name(1)))).status_code == 409


WRONG: dict[str, dict[str, Any]] = {
    "beside its data": {"held_items": {"image": [NEVER_SENT]}},
    "of another modality": {"held_items": {"video": [NEVER_SENT]}},
    "more than items": {"held_items": {"image": [None, NEVER_SENT]}},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
async def test_a_wrong_name_is_refused(changes: dict[str, Any]) -> None:
    async with serving(three_tokens) as (client, _):
        answer = await post(client, request(image(1), **changes))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("features.held_items")


def test_an_item_is_not_recalled_as_one_of_another_modality() -> None:
    held = HeldItems(100)
    hold(held, image(1), size=10)
    assert item_name("video", image(1)) != name(1)
    with pytest.raises(MissingFeatures):
        recalled(held, request(name(1), modality="video"))


async def test_nothing_is_held_if_so_wished() -> None:
    async with serving(three_tokens, held_items_bytes=0) as (client, _):
        assert HELD_ITEMS_HEADER not in (await post(client, request(image(1)))).headers
        assert (await post(client, request(name(1)))).status_code == 409


async def test_hashes_that_are_trusted_stay_for_what_is_held() -> None:
    async with serving(three_tokens, item_hashes="sent") as (client, engine):
        for sent in (request(image(1)), request(name(1))):
            assert (await post(client, sent)).status_code == 200
        hashes = [sent.prompt["mm_hashes"]["image"] for sent in engine.requests]
    assert hashes == [["sent-0"], ["sent-0"]]


def test_the_header_stays_below_4_kib() -> None:
    header = encode_names([NEVER_SENT] * 200)
    assert len(decode_names(header)) == MAX_NAMED
    assert len(header) < 3500
