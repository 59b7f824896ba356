"""Numbers that overflow in the model are refused, wherever they stand and however wide they are."""

import math
from functools import partial

import pytest
import torch

from generate_service import item_values
from shared_protocol.errors import InvalidRequest
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem, NestedTensor
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import EmbedSpan, Features, GenerateRequest, PromptEmbeds
from shared_protocol.tensors import TensorRef

check_values = partial(item_values.check_values, dtype="float64")

FLOATS = ("float16", "bfloat16", "float32", "float64")


def tensor(dtype: str, *numbers: float) -> TensorRef:
    rows = torch.tensor(numbers, dtype=torch.float64).to(getattr(torch, dtype))
    return TensorRef(dtype, (len(numbers),), rows.view(torch.uint8).numpy().tobytes())


def with_item(
    data: NestedTensor | None, *, modality: str = "image", key: str = "pixels"
) -> GenerateRequest:
    item = MultiModalItem({key: ItemElement(data, BatchedField())})
    return GenerateRequest(
        request_id="r",
        token_ids=[1] * 10,
        sampling_params={},
        features=Features(
            mm_hashes={modality: ["absent", "h"]},
            mm_placeholders={modality: [PlaceholderRange(0, 1), PlaceholderRange(2, 1)]},
            kwargs_data={modality: [None, item]},
        ),
    )


def with_embeds(data: TensorRef) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        token_ids=[0] * 10,
        sampling_params={},
        prompt_embeds=PromptEmbeds(spans=[EmbedSpan(0, 1)], tensors=[data]),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 12_000.0, -12_000.0])
def test_what_a_processor_does_not_make(dtype: str, number: float) -> None:
    with pytest.raises(InvalidRequest, match="between -10000 and 10000") as refused:
        check_values(with_item(tensor(dtype, 0.5, number, -0.5)))
    assert refused.value.param == "features.kwargs_data.image[1].pixels"


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_a_processor_makes(dtype: str) -> None:
    for numbers in ((0.0, -0.0, 255.0, -255.0, 9_000.0, -9_000.0, 6e-8), ()):
        check_values(with_item(tensor(dtype, *numbers)))


def test_numbers_without_a_tensor_and_in_lists() -> None:
    check_values(with_item([1.5, 2, [tensor("float32", 1.0)]]))
    check_values(with_item(10**9))
    check_values(with_item(None))
    check_values(with_item(TensorRef("int64", (1,), (2**62).to_bytes(8, "little"))))
    too_large = tensor("float32", 1e20)
    many: list[NestedTensor] = [-math.inf, [0.5, [math.nan]], [too_large]]
    for wrong in many:
        with pytest.raises(InvalidRequest):
            check_values(with_item(wrong))


def test_times_of_a_long_film() -> None:
    """They are words of a prompt, or made positions, which have a bound of their own."""
    check_values(with_item([0.0, 86_400.0, 3.2e7], modality="video", key="timestamps"))
    for dtype in FLOATS:
        step = tensor(dtype, 20_000.0)
        check_values(with_item(step, modality="video", key="second_per_grid_ts"))
        with pytest.raises(InvalidRequest, match="between -10000 and 10000"):
            check_values(with_item(step, modality="video", key="pixel_values_videos"))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_times_are_finite(number: float) -> None:
    many: list[NestedTensor] = [[0.5, number], number, tensor("float32", number)]
    for wrong in many:
        with pytest.raises(InvalidRequest, match=r"its numbers must be finite$"):
            check_values(with_item(wrong, modality="video", key="second_per_grid_ts"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_supplied_embeddings_may_be_as_large_as_their_dtype_has_it(dtype: str) -> None:
    largest = tensor(dtype, torch.finfo(getattr(torch, dtype)).max, 1.0)
    for request in (
        with_embeds(largest),
        with_item(largest, key="image_embeds"),
        with_item(largest, modality="prompt_embeds", key="embedding"),
    ):
        check_values(request)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_supplied_embeddings_are_finite(number: float) -> None:
    wrong = tensor("bfloat16", 1.0, number)
    for request, param in (
        (with_embeds(wrong), "prompt_embeds.tensors[0]"),
        (with_item(wrong, key="image_embeds"), "features.kwargs_data.image[1].image_embeds"),
    ):
        with pytest.raises(InvalidRequest, match="must be finite") as refused:
            check_values(request)
        assert refused.value.param == param


def test_supplied_embeddings_are_finite_in_the_model_too() -> None:
    large = with_item(tensor("float32", 1.0, 1e5), key="image_embeds")
    item_values.check_values(large, dtype="bfloat16")
    with pytest.raises(InvalidRequest, match="between -65504 and 65504"):
        item_values.check_values(large, dtype="float16")
    larger = with_item(tensor("float64", 1e300), key="image_embeds")
    item_values.check_values(larger, dtype="float64")
    with pytest.raises(InvalidRequest):
        item_values.check_values(larger, dtype="bfloat16")
