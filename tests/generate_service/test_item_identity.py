"""The engine's caches know an item by what it holds, whatever hash it came with."""

import msgspec
import pytest

from generate_service.item_admission import ItemLimits, MediaLimits
from generate_service.item_identity import (
    content_hash,
    item_name,
    item_names,
    with_content_hashes,
)
from generate_service.item_sample import SampleElement, SampleTensor
from shared_protocol.items import BatchedField, FlatField, ItemElement, MultiModalItem, SharedField
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef

DATA = bytes(range(24))
PLACE = PlaceholderRange(0, 1)
BIG = [2**70, -(2**70), 2.0**70, float("nan")]


def item(**changes: ItemElement) -> MultiModalItem:
    elements = {
        "pixels": ItemElement(TensorRef("uint8", (4, 6), DATA), BatchedField()),
        "times": ItemElement([0.0, 0.5], BatchedField()),
        "count": ItemElement(3, BatchedField()),
    }
    return MultiModalItem(elements | changes)


def request(*items: MultiModalItem | None) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        token_ids=[1] * 10,
        sampling_params={},
        features=Features(
            mm_hashes={"image": ["same"] * len(items)},
            mm_placeholders={"image": [PlaceholderRange(2 * i, 1) for i in range(len(items))]},
            kwargs_data={"image": list(items)},
        ),
    )


def hash_of(item: MultiModalItem, place: PlaceholderRange = PLACE, modality: str = "image") -> str:
    return content_hash(item_name(modality, item), place)


def with_hashes(sent: GenerateRequest, media: MediaLimits | None = None) -> GenerateRequest:
    return with_content_hashes(sent, item_names(sent, media or MediaLimits()))


def hashes(*items: MultiModalItem | None) -> list[str]:
    named = with_hashes(request(*items))
    assert named.features is not None
    return named.features.mm_hashes["image"]


def test_equal_items_have_one_hash_and_others_have_another() -> None:
    other = item(pixels=ItemElement(TensorRef("uint8", (4, 6), DATA[::-1]), BatchedField()))
    one, again, another = hashes(item(), item(), other)
    assert one == again != another
    assert len(one) == 64


def test_everything_that_an_item_holds_counts() -> None:
    variants = [
        item(),
        item(pixels=ItemElement(TensorRef("uint8", (6, 4), DATA), BatchedField())),
        item(pixels=ItemElement(TensorRef("int8", (4, 6), DATA), BatchedField())),
        item(pixels=ItemElement(TensorRef("uint8", (4, 6), DATA), SharedField(1))),
        item(times=ItemElement([0.0, 0.25], BatchedField())),
        item(times=ItemElement([[0.0, 0.5]], BatchedField())),
        item(count=ItemElement(4, BatchedField())),
        item(more=ItemElement(4, BatchedField())),
        item(times=ItemElement([0.0, 0.5], FlatField([], 0))),
        item(times=ItemElement([0.0, 0.5], FlatField([], 1))),
    ]
    made = {hash_of(variant) for variant in variants}
    made.add(hash_of(item(), modality="video"))
    assert len(made) == len(variants) + 1


ALIKE = {
    "a key that spells another element": (
        {"a": ItemElement(3, BatchedField()), "b": ItemElement(None, BatchedField())},
        {"a:BatchedField|3|b": ItemElement(None, BatchedField())},
    ),
    "a key that spells a tensor": (
        {
            "a": ItemElement(TensorRef("uint8", (2,), b"|b"), BatchedField()),
            "c": ItemElement(1, SharedField(1)),
        },
        {"a:BatchedField|uint8(2,)|b|c": ItemElement(1, SharedField(1))},
    ),
    "a key that spells a list": (
        {
            "a": ItemElement([TensorRef("uint8", (1,), b"x")], BatchedField()),
            "b": ItemElement(None, BatchedField()),
        },
        {"a:BatchedField|list of 1|uint8(1,)x|b": ItemElement(None, BatchedField())},
    ),
}


@pytest.mark.parametrize(("one", "other"), ALIKE.values(), ids=ALIKE)
def test_no_key_spells_what_another_item_holds(
    one: dict[str, ItemElement], other: dict[str, ItemElement]
) -> None:
    made = {hash_of(MultiModalItem(elements)) for elements in (one, other)}
    assert len(made) == 2


def test_numbers_of_any_size_have_a_hash() -> None:
    made = {hash_of(item(count=ItemElement(n, BatchedField()))) for n in BIG}
    assert len(made) == len(BIG)


def test_the_mask_counts_since_the_prefix_cache_does_not_look_at_it() -> None:
    places = [
        PLACE,
        PlaceholderRange(0, 1, [True]),
        PlaceholderRange(0, 2, [True, False]),
        PlaceholderRange(0, 2, [False, True]),
        PlaceholderRange(0, 3, [False, True, False]),
    ]
    assert len({hash_of(item(), place) for place in places}) == len(places)
    moved = PlaceholderRange(7, 1)
    assert hash_of(item(), moved) == hash_of(item())


def test_an_item_without_its_data_keeps_its_hash_and_the_rest_stays_as_it_is() -> None:
    sent = request(item(), None)
    named = with_hashes(sent)
    assert named.features is not None
    assert named.features.mm_hashes["image"] == [hash_of(item()), "same"]
    assert sent.features is not None
    assert sent.features.mm_hashes == {"image": ["same", "same"]}
    assert msgspec.structs.replace(named, features=sent.features) == sent


def test_an_item_whose_data_a_connector_brings_keeps_its_hash() -> None:
    sample = {"pixels": SampleElement(SampleTensor("float32", (4, 6)), BatchedField())}
    media = MediaLimits({"image": ItemLimits(None, sample, None)}, takes_remote=True)
    told = MultiModalItem({"count": ItemElement(3, BatchedField())})
    named = with_hashes(request(told, item()), media)
    assert named.features is not None
    assert named.features.mm_hashes["image"] == ["same", hash_of(item())]


def test_a_request_without_items_is_returned_as_it_is() -> None:
    text = GenerateRequest(request_id="r", token_ids=[1], sampling_params={})
    assert with_hashes(text) is text


def test_the_name_of_an_item_that_was_held_is_not_made_again() -> None:
    sent = request(item(), item())
    assert sent.features is not None
    features = msgspec.structs.replace(sent.features, held_items={"image": ["held", None]})
    recalled = msgspec.structs.replace(sent, features=features)
    assert item_names(recalled, MediaLimits()) == {"image": ["held", item_name("image", item())]}
