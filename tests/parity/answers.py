"""Answers to chat requests, streamed or not, in one shape that can be compared."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

LOGPROB_TOLERANCE = 1e-3


@dataclass
class Answer:
    """
    Attributes:
        logprobs: the entries of the OpenAI answer, a token each.
    """

    status: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


async def ask(client: httpx.AsyncClient, url: str, request: dict[str, Any]) -> Answer:
    """Send a chat request of one choice and read the whole answer."""
    response = await client.post(f"{url}/v1/chat/completions", json=request)
    if response.status_code != httpx.codes.OK:
        return Answer(response.status_code, error=response.json()["error"])
    if not request.get("stream"):
        return _read_whole(response.json())
    return _read_events(response.text)


def _read_whole(body: dict[str, Any]) -> Answer:
    (choice,) = body["choices"]
    return Answer(
        status=200,
        text=choice["message"]["content"],
        token_ids=choice["token_ids"],
        prompt_token_ids=body["prompt_token_ids"],
        finish_reason=choice["finish_reason"],
        stop_reason=choice["stop_reason"],
        logprobs=choice["logprobs"]["content"],
        usage=body["usage"],
    )


def _read_events(text: str) -> Answer:
    answer = Answer(status=200)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]", text[-500:]
    for line in lines[:-1]:
        event = json.loads(line)
        if "error" in event:
            answer.error = event["error"]
            continue
        answer.usage = event.get("usage") or answer.usage
        answer.prompt_token_ids = event.get("prompt_token_ids") or answer.prompt_token_ids
        for choice in event["choices"]:
            answer.text += choice["delta"].get("content") or ""
            answer.token_ids += choice.get("token_ids") or []
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            answer.stop_reason = choice.get("stop_reason") or answer.stop_reason
            answer.logprobs += (choice["logprobs"] or {}).get("content") or []
    return answer


def differences(pair: Answer, monolith: Answer) -> list[str]:
    """Name what differs between two answers to one request; nothing if they are equal.

    Where the monolith's two best tokens are closer than the tolerance, either may come: which one
    depends on what else was in the batch. The answers are compared up to that step.
    """
    tie = _first_tie(monolith)
    if tie is not None and pair.token_ids[:tie] == monolith.token_ids[:tie]:
        return _logprob_differences(pair, monolith, tie)
    lines = [
        f"{name}: pair {getattr(pair, name)!r}, monolith {getattr(monolith, name)!r}"
        for name in (
            *("status", "token_ids", "text", "finish_reason", "stop_reason"),
            *("usage", "prompt_token_ids", "error"),
        )
        if getattr(pair, name) != getattr(monolith, name)
    ]
    return lines + _logprob_differences(pair, monolith, len(monolith.logprobs))


def has_tie(answer: Answer) -> bool:
    return _first_tie(answer) is not None


def _first_tie(answer: Answer) -> int | None:
    for step, entry in enumerate(answer.logprobs):
        best = sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True)[:2]
        if len(best) == 2 and best[0] - best[1] < LOGPROB_TOLERANCE:
            return step
    return None


def _logprob_differences(pair: Answer, monolith: Answer, steps: int) -> list[str]:
    if len(pair.logprobs[:steps]) != len(monolith.logprobs[:steps]):
        return [f"logprobs of {len(pair.logprobs)} and {len(monolith.logprobs)} tokens"]
    lines = []
    both = zip(pair.logprobs[:steps], monolith.logprobs[:steps], strict=True)
    for step, (ours, theirs) in enumerate(both):
        gap = abs(ours["logprob"] - theirs["logprob"])
        if ours["token"] != theirs["token"] or gap > LOGPROB_TOLERANCE:
            lines.append(f"step {step}: pair {ours}, monolith {theirs}")
    return lines
