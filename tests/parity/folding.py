"""Answers of any endpoint, brought into one shape: what a stream adds up to is its plain answer."""

import json
import re
from typing import Any, Final

Json = Any

# Made anew for each answer, or of the server's own configuration.
_OWN = ("id", "created", "created_at", "completed_at", "system_fingerprint", "request_id")
_OWN_IDS = re.compile(r"(chatcmpl-tool|chatcmpl|cmpl|resp|msg|rs|call)[-_][0-9a-f]{8,}")

_FORBIDDEN: Final = -9999.0
"""vLLM's logprob of a token that could not come. Which of them fill up the best ones depends on how
many the other requests of the step ask for: `torch.topk` of another count orders ties otherwise."""


def settled(body: Json) -> Json:
    """The body without what differs between any two answers."""
    if isinstance(body, dict):
        return {
            key: _ranked(value) if _are_ranked(key, value) else settled(value)
            for key, value in body.items()
            if key not in _OWN
        }
    if isinstance(body, list):
        return [settled(member) for member in body]
    return _OWN_IDS.sub("ID", body) if isinstance(body, str) else body


def _are_ranked(key: str, value: Json) -> bool:
    # The body of a response has the number that was asked for under this key.
    return key == "top_logprobs" and isinstance(value, list)


def _ranked(steps: list[Json]) -> list[Json]:
    """The best tokens, of which those that could not come are counted only.

    Args:
        steps: of a chat, the tokens of one step; of a completion, of each step {token: logprob}.
    """
    return [
        step if step is None else _rank(step) if "logprob" in step else _completed(step)
        for step in steps
    ]


def _rank(token: dict[str, Any]) -> Json:
    return {"logprob": _FORBIDDEN} if token["logprob"] == _FORBIDDEN else settled(token)


def _completed(step: dict[str, float]) -> Json:
    possible = {token: logprob for token, logprob in step.items() if logprob != _FORBIDDEN}
    return {"possible": possible, "forbidden": len(step) - len(possible)}


def folded(text: str) -> Json:
    """Add up the events of a streamed chat or completion, choice by choice."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]", text[-300:]
    events = [json.loads(line) for line in lines[:-1]]
    choices: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"choices": choices}
    for event in events:
        if "error" in event:
            whole["error"] = event["error"]
            continue
        if event.get("usage"):
            whole["usage"] = _given(event["usage"])
        for choice in event["choices"]:
            _add(choices.setdefault(choice["index"], {}), choice)
    return settled(whole)


def _add(sum_: dict[str, Any], choice: dict[str, Any]) -> None:
    text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    sum_["text"] = sum_.get("text", "") + text
    sum_["token_ids"] = sum_.get("token_ids", []) + (choice.get("token_ids") or [])
    for name in ("finish_reason", "stop_reason"):
        if choice.get(name) is not None:
            sum_[name] = choice[name]
    for name, values in (choice.get("logprobs") or {}).items():
        if values:
            logprobs = sum_.setdefault("logprobs", {})
            logprobs[name] = logprobs.get(name, []) + values


def plain_as_folded(body: dict[str, Any]) -> Json:
    """A plain answer in the shape of `folded`."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in body["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        piece = {**choice, "text": text}
        _add(choices.setdefault(choice["index"], {}), piece)
    return settled({"choices": choices, "usage": _given(body["usage"])})


def _given(usage: dict[str, Any]) -> dict[str, Any]:
    """A stream leaves out what a plain answer has as null."""
    return {name: value for name, value in usage.items() if value is not None}


def same(ours: Json, theirs: Json, tolerance: float) -> bool:
    """Whether two bodies are equal, numbers with a fraction within `tolerance`."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) <= tolerance
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(
            same(ours[key], theirs[key], tolerance) for key in ours
        )
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(
            same(a, b, tolerance) for a, b in zip(ours, theirs, strict=True)
        )
    return bool(ours == theirs)
