"""Tool calls that a grammar forces out of a random model, on the pair and on the monolith."""

import json
from typing import Any

import pytest

from tests.parity.adding_up import Said
from tests.parity.both import both_say
from tests.parity.conftest import FORCED_END, Thinker
from tests.parity.tool_requests import (
    AUTO,
    CHAT,
    NAMED,
    NO_THINKING,
    NONE,
    ONE_CALL,
    PATHS,
    REQUIRED,
    SOON_OVER,
    tool_request,
)

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MAX_TOKENS = 250


def say(thinker: Thinker, path: str, **more: Any) -> Said:
    return both_say(thinker, path, **tool_request(path, max_tokens=MAX_TOKENS, **more))


def check_calls(calls: list[tuple[str, str]]) -> None:
    """What the grammar promises."""
    for name, arguments in calls:
        given = json.loads(arguments)
        if name == "get_time":
            assert given["zone"] in ("Asia/Tokyo", "Europe/Berlin")
        else:
            assert name == "get_weather"
            assert given["city"] in ("Berlin", "Paris")


@pytest.mark.parametrize("path", PATHS)
def test_without_a_call(thinker: Thinker, path: str) -> None:
    none = say(thinker, path, **NONE[path], **NO_THINKING[path])
    auto = say(thinker, path, **AUTO[path], **NO_THINKING[path])
    assert none["calls"] == auto["calls"] == []
    assert none["text"]


@pytest.mark.parametrize("path", PATHS)
def test_required(thinker: Thinker, path: str) -> None:
    answer = say(thinker, path, **REQUIRED[path], **NO_THINKING[path], **SOON_OVER[path])
    assert answer["calls"]
    assert not answer["text"]
    check_calls(answer["calls"])


@pytest.mark.parametrize("path", PATHS)
def test_named(thinker: Thinker, path: str) -> None:
    answer = say(thinker, path, **NAMED[path], **NO_THINKING[path])
    assert {name for name, _ in answer["calls"]} == {"get_time"}
    check_calls(answer["calls"])


@pytest.mark.parametrize("path", PATHS)
def test_one_call_at_most(thinker: Thinker, path: str) -> None:
    answer = say(thinker, path, **ONE_CALL[path], **NO_THINKING[path])
    assert len(answer["calls"]) == 1
    check_calls(answer["calls"])


def test_several_calls(thinker: Thinker) -> None:
    # More tokens than one call has.
    request = {**REQUIRED[CHAT], **NO_THINKING[CHAT], **SOON_OVER[CHAT], "min_tokens": 90}
    answer = say(thinker, CHAT, **request)
    assert len(answer["calls"]) > 1
    assert answer["ended"] == "tool_calls"
    check_calls(answer["calls"])


@pytest.mark.parametrize("choice", [REQUIRED, NAMED])
def test_a_call_after_thinking(thinker: Thinker, choice: dict[str, Any]) -> None:
    answer = say(thinker, CHAT, **choice[CHAT], thinking_token_budget=8)
    assert answer["reasoning"].endswith(FORCED_END)
    assert answer["calls"]
    check_calls(answer["calls"])


def test_the_result_of_a_call_goes_back(thinker: Thinker) -> None:
    call = {
        "id": "call-1",
        "type": "function",
        "function": {"name": "get_time", "arguments": '{"zone": "Asia/Tokyo"}'},
    }
    request = tool_request(CHAT, max_tokens=16)
    request["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "12:30"},
    ]
    assert both_say(thinker, CHAT, **request)["reasoning"]
