"""Whole answers, event by event, with their random ids numbered: equal if nothing else differs."""

import json
from typing import Any

Json = Any

_OWN = ("created", "created_at", "completed_at", "system_fingerprint")
_ID_KEYS = ("id", "call_id", "item_id", "tool_use_id", "signature")
# Kimi's ids are the name and the place of the call.
_NOT_RANDOM = "functions."


def events_of(text: str) -> list[Json]:
    """The data of a stream of server-sent events, in order."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [event if event == "[DONE]" else json.loads(event) for event in data]


def numbered(body: Json) -> Json:
    """Replace each random id by its number, so that which ids are the same is kept."""
    return _numbered(body, {})


def _numbered(body: Json, numbers: dict[str, str]) -> Json:
    if isinstance(body, list):
        return [_numbered(member, numbers) for member in body]
    if not isinstance(body, dict):
        return body
    return {
        key: _number(value, numbers) if key in _ID_KEYS else _numbered(value, numbers)
        for key, value in body.items()
        if key not in _OWN
    }


def _number(value: Json, numbers: dict[str, str]) -> Json:
    if not isinstance(value, str) or value.startswith(_NOT_RANDOM):
        return value
    return numbers.setdefault(value, f"id {len(numbers)}")
