"""How long films may last goes by the table of positions that vLLM makes for the model."""

from types import SimpleNamespace
from typing import Any

import pytest

from generate_service import vllm_media_limits, vllm_positions
from generate_service.film_time import FilmTime
from generate_service.vllm_media_limits import _film_time
from generate_service.vllm_positions import table_length

MAX_MODEL_LEN = 4096
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def model(rope: dict[str, Any], *, pruned: bool = False) -> Any:
    text = SimpleNamespace(max_position_embeddings=32768, rope_parameters=rope)
    media = SimpleNamespace(is_multimodal_pruning_enabled=lambda: pruned)
    return SimpleNamespace(
        hf_text_config=text, max_model_len=MAX_MODEL_LEN, multimodal_config=media
    )


def counting(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(vllm_positions, "_counting_class", lambda _: name)


@pytest.mark.parametrize(("rope", "known"), [({"rope_type": "default"}, 32768), (YARN, 131072)])
def test_the_table_is_four_times_what_the_model_was_made_for(
    rope: dict[str, Any], known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is more than it was trained for, if YaRN stretches that."""
    counting(monkeypatch, "Qwen2_5_VLForConditionalGeneration")
    assert table_length(model(rope)) == 4 * known


def test_the_table_of_a_model_without_time_is_as_long_as_its_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting(monkeypatch, "Qwen3VLForConditionalGeneration")
    assert table_length(model({})) == 32768
    assert table_length(model({}, pruned=True)) == 4 * 32768


@pytest.mark.parametrize(("asked", "beside"), [(True, 0), (False, MAX_MODEL_LEN)])
def test_films_leave_room_for_text_where_the_model_cannot_be_asked(
    asked: bool, beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting(monkeypatch, "Other")
    monkeypatch.setattr(vllm_media_limits, "asked", lambda _: asked)
    config = SimpleNamespace(vision_config=SimpleNamespace(tokens_per_second=2))
    info: Any = SimpleNamespace(get_hf_config=lambda: config)
    assert _film_time(info, model({})) == FilmTime(2.0, 4 * 32768 - beside)


def test_a_model_that_has_no_time_has_no_limit() -> None:
    plain = SimpleNamespace(vision_config=SimpleNamespace())
    info: Any = SimpleNamespace(get_hf_config=lambda: plain)
    assert _film_time(info, model({})) is None
