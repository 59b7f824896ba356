"""How long films may last goes by the table of positions that vLLM makes for the model."""

from types import SimpleNamespace
from typing import Any

import pytest

from generate_service.film_time import FilmTime
from generate_service.vllm_media_limits import _film_time


def found(config: Any, *, trained: int, max_model_len: int) -> FilmTime | None:
    info: Any = SimpleNamespace(get_hf_config=lambda: config)
    text = SimpleNamespace(max_position_embeddings=trained)
    model: Any = SimpleNamespace(hf_text_config=text, max_model_len=max_model_len)
    return _film_time(info, model)


QWEN2_5 = SimpleNamespace(vision_config=SimpleNamespace(tokens_per_second=2))


@pytest.mark.parametrize(
    ("trained", "max_model_len", "most"),
    [
        (32768, 4096, 4 * 32768 - 4096),
        # YaRN by four, which makes the table four times as long.
        (32768, 131072, 3 * 131072),
    ],
)
def test_the_table_is_four_times_what_the_model_can_be_given(
    trained: int, max_model_len: int, most: int
) -> None:
    assert found(QWEN2_5, trained=trained, max_model_len=max_model_len) == FilmTime(2.0, most)


def test_a_model_that_has_no_time_has_no_limit() -> None:
    plain = SimpleNamespace(vision_config=SimpleNamespace())
    assert found(plain, trained=100, max_model_len=100) is None
