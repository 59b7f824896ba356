"""What an answer says, whichever API it came by, and what the events of a stream add up to."""

import contextlib
import json
from typing import Any

Json = Any
Said = dict[str, Json]
"""``reasoning`` and ``text``, ``calls`` as pairs of name and arguments, and why it ``ended``."""


def said(path: str, body: Json) -> Said:
    """Return what a plain answer of the endpoint `path` says."""
    return _PLAIN[path](body)


def said_by_stream(path: str, events: list[Json]) -> Said:
    """Return what a stream's events add up to."""
    return _STREAMED[path](events)


def _said(reasoning: str, text: str, calls: list[tuple[str, str]], ended: str | None) -> Said:
    # A stream has sent the newline in front of a call before it can know that a call follows.
    return {"reasoning": reasoning, "text": text.strip(), "calls": calls, "ended": ended}


def _chat(body: Json) -> Said:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in _calls(message)]
    return _said(
        message.get("reasoning") or "", message["content"] or "", calls, choice["finish_reason"]
    )


def _streamed_chat(events: list[Json]) -> Said:
    assert events[-1] == "[DONE]"
    reasoning = text = ""
    calls: dict[int, list[str]] = {}
    ended = None
    for event in events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning") or ""
            text += delta.get("content") or ""
            for call in _calls(delta):
                sum_ = calls.setdefault(call["index"], ["", ""])
                sum_[0] += call["function"].get("name") or ""
                sum_[1] += call["function"].get("arguments") or ""
            ended = choice["finish_reason"] or ended
    return _said(reasoning, text, [(name, given) for name, given in calls.values()], ended)


def _calls(message: Json) -> list[Json]:
    return message.get("tool_calls") or []


def _responses(body: Json) -> Said:
    reasoning = text = ""
    calls = []
    for item in body["output"]:
        if item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        else:
            calls.append((item["name"], item["arguments"]))
    return _said(reasoning, text, calls, body["status"])


def _streamed_responses(events: list[Json]) -> Said:
    """Add up the deltas; the last event brings the whole response as well, which is not used."""
    reasoning = text = ""
    calls: dict[int, list[str]] = {}
    for event in events:
        match event["type"]:
            case "response.reasoning_text.delta":
                reasoning += event["delta"]
            case "response.output_text.delta":
                text += event["delta"]
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                calls[event["output_index"]] = [event["item"]["name"], ""]
            case "response.function_call_arguments.delta":
                calls[event["output_index"]][1] += event["delta"]
    ended = events[-1]["response"]["status"]
    return _said(reasoning, text, [(name, given) for name, given in calls.values()], ended)


def _messages(body: Json) -> Said:
    reasoning = text = ""
    calls = []
    for block in body["content"]:
        if block["type"] == "thinking":
            reasoning += block["thinking"]
        elif block["type"] == "text":
            text += block["text"]
        else:
            calls.append((block["name"], json.dumps(block["input"])))
    return _said(reasoning, text, calls, body["stop_reason"])


def _streamed_messages(events: list[Json]) -> Said:
    reasoning = text = ""
    calls: dict[int, list[str]] = {}
    ended = None
    for event in events:
        match event["type"], event.get("delta"):
            case "content_block_start", _ if event["content_block"]["type"] == "tool_use":
                calls[event["index"]] = [event["content_block"]["name"], ""]
            case "content_block_delta", {"type": "thinking_delta", "thinking": piece}:
                reasoning += piece
            case "content_block_delta", {"type": "text_delta", "text": piece}:
                text += piece
            case "content_block_delta", {"type": "input_json_delta", "partial_json": piece}:
                calls[event["index"]][1] += piece
            case "message_delta", {"stop_reason": reason}:
                ended = reason
    return _said(
        reasoning, text, [(name, _settled(given)) for name, given in calls.values()], ended
    )


def _settled(given: str) -> str:
    """Write arguments as a plain answer's are written; as they are if they broke off."""
    with contextlib.suppress(json.JSONDecodeError):
        return json.dumps(json.loads(given))
    return given


_PLAIN = {
    "/v1/chat/completions": _chat,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
}
_STREAMED = {
    "/v1/chat/completions": _streamed_chat,
    "/v1/responses": _streamed_responses,
    "/v1/messages": _streamed_messages,
}
