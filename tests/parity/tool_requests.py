"""Requests with tools, for each of the APIs that take them."""

from typing import Any

Body = dict[str, Any]

QUESTION = "What is the weather in Berlin, and what time is it there?"

# Whatever a model writes, such arguments come to an end.
_WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Berlin", "Paris"]}, "days": {"enum": [1, 2]}},
    "required": ["city"],
    "additionalProperties": False,
}
_TIME = {
    "type": "object",
    "properties": {"zone": {"enum": ["Asia/Tokyo", "Europe/Berlin"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
_TOOLS = {"get_weather": _WEATHER, "get_time": _TIME}

PATHS = CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

# Members of a request, by the API that takes them so.
NONE: dict[str, Body] = {
    CHAT: {"tool_choice": "none"},
    RESPONSES: {"tool_choice": "none"},
    MESSAGES: {"tool_choice": {"type": "none"}},
}
AUTO: dict[str, Body] = {
    CHAT: {"tool_choice": "auto"},
    RESPONSES: {"tool_choice": "auto"},
    MESSAGES: {"tool_choice": {"type": "auto"}},
}
REQUIRED: dict[str, Body] = {
    CHAT: {"tool_choice": "required"},
    RESPONSES: {"tool_choice": "required"},
    MESSAGES: {"tool_choice": {"type": "any"}},
}
NAMED: dict[str, Body] = {
    CHAT: {"tool_choice": {"type": "function", "function": {"name": "get_time"}}},
    RESPONSES: {"tool_choice": {"type": "function", "name": "get_time"}},
    MESSAGES: {"tool_choice": {"type": "tool", "name": "get_time"}},
}
ONE_CALL: dict[str, Body] = {
    CHAT: {"tool_choice": "required", "parallel_tool_calls": False},
    RESPONSES: {"tool_choice": "required", "parallel_tool_calls": False},
    MESSAGES: {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
}
NO_THINKING: dict[str, Body] = {
    CHAT: {"chat_template_kwargs": {"enable_thinking": False}},
    RESPONSES: {"reasoning": {"effort": "none"}},
    MESSAGES: {"thinking": {"type": "disabled"}},
}

# Where a grammar allows the turn to end, a random model may as well write call after call.
# Anthropic's API has no such member; there the last call is cut off, and left out of the answer.
TURN_END_ID = 2
SOON_OVER: dict[str, Body] = {
    CHAT: {"logit_bias": {str(TURN_END_ID): 20.0}},
    RESPONSES: {"logit_bias": {str(TURN_END_ID): 20.0}},
    MESSAGES: {},
}


def tool_request(path: str, *, max_tokens: int, **more: Any) -> Body:
    """A greedy request to `path` that offers two tools; `more` are further members of its body."""
    return {"temperature": 0.0, **_MAKERS[path](max_tokens), **more}


def _chat(max_tokens: int) -> Body:
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": max_tokens,
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in _TOOLS.items()
        ],
    }


def _responses(max_tokens: int) -> Body:
    return {
        "input": QUESTION,
        "max_output_tokens": max_tokens,
        "tools": [
            {"type": "function", "name": name, "parameters": schema}
            for name, schema in _TOOLS.items()
        ],
    }


def _messages(max_tokens: int) -> Body:
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": max_tokens,
        "tools": [{"name": name, "input_schema": schema} for name, schema in _TOOLS.items()],
    }


_MAKERS = {
    CHAT: _chat,
    RESPONSES: _responses,
    MESSAGES: _messages,
}
