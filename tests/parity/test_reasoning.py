"""Thinking: how it is turned on and off, what may follow it, and budgets that end it."""

import json
from typing import Any

import httpx
import pytest

from tests.conftest import SERVED_NAME, Duo
from tests.parity.both import ask_both, both_say, stream_from_both
from tests.parity.conftest import FORCED_END, Thinker
from tests.parity.tool_requests import CHAT, MESSAGES, QUESTION, RESPONSES

pytestmark = [pytest.mark.engine]

CHAT_REQUEST: dict[str, Any] = {
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 40,
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
JSON_ANSWER: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    "max_tokens": 120,
}


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0, 1, 2, 9, 25])
def test_a_budget_ends_the_thinking(thinker: Thinker, budget: int) -> None:
    request = CHAT_REQUEST | {"thinking_token_budget": budget, "return_token_ids": True}
    answer = both_say(thinker, CHAT, **request)
    assert answer["reasoning"].endswith(FORCED_END)
    assert answer["text"]
    tokens = ask_both(thinker, CHAT, **request)["usage"]["completion_tokens_details"]
    free = ask_both(thinker, CHAT, **CHAT_REQUEST, thinking_token_budget=-1)
    assert not free["choices"][0]["message"]["content"]
    assert tokens["reasoning_tokens"] < budget + 12


@pytest.mark.slow
def test_a_budget_in_a_completion(thinker: Thinker) -> None:
    request = {"prompt": "the quick <think>brown", "max_tokens": 30, "thinking_token_budget": 4}
    body = ask_both(thinker, "/v1/completions", **request)
    assert f"{FORCED_END}</think>" in body["choices"][0]["text"]


@pytest.mark.slow
def test_a_budget_of_anthropics(thinker: Thinker) -> None:
    answer = both_say(
        thinker,
        MESSAGES,
        messages=CHAT_REQUEST["messages"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        max_tokens=1050,
    )
    assert answer["reasoning"].endswith(FORCED_END)
    assert answer["text"]


@pytest.mark.slow
def test_a_grammar_holds_after_the_thinking(thinker: Thinker) -> None:
    answer = both_say(thinker, CHAT, **CHAT_REQUEST | JSON_ANSWER, thinking_token_budget=5)
    assert answer["reasoning"].endswith(FORCED_END)
    assert json.loads(answer["text"]).keys() == {"ok"}


@pytest.mark.slow
def test_a_grammar_holds_from_the_start_if_there_is_no_thinking(thinker: Thinker) -> None:
    for off in (
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
    ):
        answer = both_say(thinker, CHAT, **CHAT_REQUEST | JSON_ANSWER, **off)
        assert answer["reasoning"] == ""
        assert json.loads(answer["text"]).keys() == {"ok"}


@pytest.mark.slow
def test_efforts_change_the_prompt(thinker: Thinker) -> None:
    answers = {
        effort: both_say(thinker, CHAT, **CHAT_REQUEST, reasoning_effort=effort)["reasoning"]
        for effort in ("low", "high")
    }
    answers["responses"] = both_say(
        thinker, RESPONSES, input=QUESTION, max_output_tokens=40, reasoning={"effort": "low"}
    )["reasoning"]
    assert answers["low"] == answers["responses"] != answers["high"] != ""


@pytest.mark.slow
def test_thinking_can_be_left_out_of_the_answer(thinker: Thinker) -> None:
    request = CHAT_REQUEST | {"thinking_token_budget": 5}
    shown = both_say(thinker, CHAT, **request)
    hidden = both_say(thinker, CHAT, **request, include_reasoning=False)
    assert (shown["reasoning"], hidden["reasoning"]) != ("", "")
    assert hidden == shown | {"reasoning": ""}


@pytest.mark.slow
def test_n_choices_have_a_budget_each(thinker: Thinker) -> None:
    request = CHAT_REQUEST | {"thinking_token_budget": 6, "n": 3, "seed": 1, "temperature": 0.9}
    choices = ask_both(thinker, CHAT, **request)["choices"]
    thoughts = [choice["message"]["reasoning"] for choice in choices]
    assert len(set(thoughts)) == 3
    assert all(thought.endswith(FORCED_END) for thought in thoughts)


@pytest.mark.slow
def test_the_end_may_come_before_the_budget_is_spent(thinker: Thinker) -> None:
    tokens = ask_both(thinker, "/tokenize", prompt="</think>", add_special_tokens=False)["tokens"]
    (end,) = tokens
    request = CHAT_REQUEST | {"logit_bias": {str(end): 4.0}, "thinking_token_budget": 30}
    answer = stream_from_both(thinker, CHAT, **request)
    assert answer["text"]
    assert not answer["reasoning"].endswith(FORCED_END)


def test_there_is_no_budget_without_a_parser(duo: Duo) -> None:
    request = CHAT_REQUEST | {"model": SERVED_NAME, "thinking_token_budget": 5}
    ours, theirs = (
        httpx.post(f"{url}{CHAT}", json=request, timeout=60.0, trust_env=False)
        for url in (duo.pair, duo.monolith)
    )
    assert ours.status_code == theirs.status_code == 400
    assert ours.json()["error"]["message"] == theirs.json()["error"]["message"]
