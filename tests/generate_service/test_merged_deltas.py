"""Steps of an answer that is not streamed are joined where nothing is lost."""

from typing import Any

import pytest

from generate_service.merged_deltas import merged
from shared_protocol.answer import ArrayBytes, Logprobs, PrefillStats, TokenDelta

FIRST = TokenDelta(token_ids=[1], timestamp=1.0, prefill_stats=PrefillStats(num_prompt_tokens=3))
LAST = TokenDelta(token_ids=[9], timestamp=9.0, finish_reason="length")
ARRAY = ArrayBytes("<i4", (1, 1), bytes(4))
TELLING: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": Logprobs(ARRAY, ARRAY, ARRAY)},
    "numbers that are none": {"num_nans_in_logits": 1},
    "experts": {"routed_experts": ARRAY},
    "an adapter's weights": {"weight_version": "2"},
    "another choice": {"index": 1},
    "speculation": {"spec_decode_metrics": {"drafts": 1}},
}


def plain(token: int, **told: Any) -> TokenDelta:
    return TokenDelta(token_ids=[token], timestamp=float(token), **told)


def test_what_is_between_the_first_and_the_last_is_one() -> None:
    steps = [FIRST, *(plain(token) for token in range(2, 9)), LAST]
    middle = TokenDelta(token_ids=[2, 3, 4, 5, 6, 7, 8], timestamp=8.0)
    assert merged(steps) == [FIRST, middle, LAST]
    assert [len(step.token_ids) for step in steps] == [1] * 9


@pytest.mark.parametrize("told", TELLING.values(), ids=TELLING)
def test_what_tells_of_more_stays_by_itself(told: dict[str, Any]) -> None:
    steps = [plain(2), plain(3, **told), plain(4)]
    assert merged(steps) == steps


def test_choices_that_take_turns_are_not_mixed() -> None:
    steps = [plain(2), plain(3, index=1), plain(4), plain(5, index=1)]
    assert merged(steps) == steps


def test_nothing_and_one() -> None:
    assert merged([]) == []
    assert merged([LAST]) == [LAST]


def test_a_long_answer_is_not_one_frame() -> None:
    result = merged([FIRST, *(plain(token) for token in range(1000)), LAST])
    assert [len(step.token_ids) for step in result] == [1, 256, 256, 256, 232, 1]
    assert [token for step in result[1:-1] for token in step.token_ids] == list(range(1000))
    assert [step.timestamp for step in result[1:-1]] == [255.0, 511.0, 767.0, 999.0]
