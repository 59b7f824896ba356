"""What is refused of the positions that a model's own code counts."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.inputs import mm_input, tokens_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams

from generate_service.vllm_positions import ModelPositions, check_positions
from shared_protocol.errors import InvalidRequest

TOKENS = [1] * 10
MAX_MODEL_LEN = 20
TABLE = 40

Count = Callable[[list[int], list[Any]], tuple[torch.Tensor, int]]


def counts(highest: int = 9, tokens: int = 10, lowest: int = 0) -> Count:
    positions = torch.zeros(3, tokens, dtype=torch.int64)
    positions[0, 0], positions[2, -1] = lowest, highest
    return lambda token_ids, features: (positions, 0)


def known(count: Count, **others: Any) -> ModelPositions:
    model = SimpleNamespace(get_mrope_input_positions=count)
    limits = {"table": TABLE, "max_model_len": MAX_MODEL_LEN, "drafts": 0, "merge": 2, "kept": 1.0}
    return ModelPositions(model=model, **{**limits, **others})


def request(*, params: Any = None, modality: str = "video", **sizes: Any) -> Any:
    data = {
        key: MultiModalFieldElem(data=value, field=MultiModalBatchedField())
        for key, value in sizes.items()
    }
    prompt = mm_input(
        prompt_token_ids=TOKENS,
        mm_kwargs=MultiModalKwargsItems({modality: [MultiModalKwargsItem(data)]}),
        mm_hashes={modality: ["hash"]},
        mm_placeholders={modality: [PlaceholderRange(offset=2, length=4)]},
    )
    return SimpleNamespace(prompt=prompt, params=params or SamplingParams(max_tokens=4))


def refusal(asked: Any, limits: ModelPositions) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check_positions(asked, limits)
    assert caught.value.param == "features"
    return caught.value.message


def test_positions_and_what_follows_them_are_in_the_table() -> None:
    check_positions(request(), known(counts(highest=35)))
    assert "36" in refusal(request(), known(counts(highest=36)))
    refusal(request(), known(counts(highest=35), drafts=1))
    assert "-1" in refusal(request(), known(counts(lowest=-1)))


@pytest.mark.parametrize("most", [11, None])
def test_no_more_follows_than_the_model_can_be_given(most: int | None) -> None:
    asked = request(params=SamplingParams(max_tokens=most))
    check_positions(asked, known(counts(highest=29), drafts=3))
    refusal(asked, known(counts(highest=30), drafts=3))


def test_nothing_follows_what_is_pooled() -> None:
    check_positions(request(params=PoolingParams()), known(counts(highest=39)))


@pytest.mark.parametrize("tokens", [9, 11])
def test_a_position_for_every_token(tokens: int) -> None:
    assert f"{tokens} positions" in refusal(request(), known(counts(tokens=tokens)))


def test_a_pruned_film_has_positions_for_what_is_pruned() -> None:
    grid = torch.tensor([4, 4, 4])
    check_positions(request(video_grid_thw=grid), known(counts(tokens=11), kept=0.25))
    refusal(request(video_grid_thw=grid), known(counts(tokens=9), kept=0.25))
    refusal(request(video_grid_thw=torch.tensor([5, 4, 4])), known(counts(), kept=0.25))


def test_what_the_model_raises_is_a_refusal() -> None:
    def fail(token_ids: list[int], features: list[Any]) -> Any:
        raise RuntimeError("length mismatch")

    assert "length mismatch" in refusal(request(), known(fail))


def never(token_ids: list[int], features: list[Any]) -> Any:
    raise AssertionError("the model was asked")


@pytest.mark.parametrize(
    "sizes",
    [
        {"video_grid_thw": torch.tensor([2**31, 2, 2])},
        {"video_grid_thw": torch.tensor([2**31, 0, 0])},
        {"video_grid_thw": torch.tensor([1, 4, 2])},
        {"image_grid_thw": torch.tensor([16])},
        {"image_grid_thw": torch.tensor([], dtype=torch.int64)},
        {"audio_feature_lengths": torch.tensor(2**40)},
        {"audio_feature_lengths": torch.tensor([float("nan")])},
    ],
)
def test_sizes_that_are_not_those_of_the_place_are_not_counted(sizes: dict[str, Any]) -> None:
    """Arrays of such sizes would be made."""
    assert "does not fit" in refusal(request(**sizes), known(never))


def test_a_request_without_media_is_not_looked_at() -> None:
    text = SimpleNamespace(prompt=tokens_input(TOKENS), params=SamplingParams())
    check_positions(text, known(never))  # type: ignore[arg-type]
    check_positions(request(modality="prompt_embeds"), known(never))
