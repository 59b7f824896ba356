"""Deltas as the JSON of vLLM 0.32's own ``/inference/v1/generate``: for curl and other stacks."""

import base64
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from shared_protocol.answer import ArrayBytes, Logprobs, TokenDelta
from shared_protocol.errors import TandemError
from shared_protocol.request import GenerateRequest

LOWEST_LOGPROB = -9999.0
"""What the OpenAI shapes have in place of minus infinity and NaN."""


def answer_body(request: GenerateRequest, deltas: Sequence[TokenDelta]) -> dict[str, Any]:
    """Put the deltas of all choices together into one answer."""
    if (pooled := deltas[-1].pooling_output) is not None:
        return {
            "request_id": request.request_id,
            "data": _array(pooled).tolist(),
            "usage": _usage(len(request.token_ids), 0),
        }
    choices = range(1 + max(delta.index for delta in deltas))
    of_choice = [[delta for delta in deltas if delta.index == index] for index in choices]
    first = of_choice[0][0]
    last = of_choice[0][-1]
    return {
        "request_id": request.request_id,
        "choices": [
            _choice(index, choice, _top_count(request)) for index, choice in enumerate(of_choice)
        ],
        "prompt_logprobs": _prompt_logprobs(request, of_choice[0]),
        "prompt_token_ids": request.token_ids if request.return_token_ids else None,
        "usage": _usage(len(request.token_ids), sum(len(delta.token_ids) for delta in deltas)),
        "kv_transfer_params": last.kv_transfer_params or first.kv_transfer_params,
        "ec_transfer_params": last.ec_transfer_params or first.ec_transfer_params,
    }


def stream_event(request: GenerateRequest, delta: TokenDelta) -> bytes:
    choice = _choice(delta.index, [delta], _top_count(request))
    return _event({"request_id": request.request_id, "choices": [choice]})


def stream_end(request: GenerateRequest, completion_tokens: int) -> Iterator[bytes]:
    options = request.stream_options or {}
    if options.get("include_usage"):
        usage = _usage(len(request.token_ids), completion_tokens)
        yield _event({"request_id": request.request_id, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def stream_failure(error: TandemError) -> bytes:
    return _event(error.body()) + b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _top_count(request: GenerateRequest) -> int | None:
    count: int | None = request.sampling_params.get("logprobs")
    return count


def _choice(index: int, deltas: Sequence[TokenDelta], top_count: int | None) -> dict[str, Any]:
    logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    experts = [_array(delta.routed_experts) for delta in deltas if delta.routed_experts is not None]
    masks = [mask for delta in deltas for mask in _sampling_mask(delta)]
    return {
        "index": index,
        "token_ids": [token for delta in deltas for token in delta.token_ids],
        "logprobs": {"content": list(_logprobs_content(logprobs, top_count))} if logprobs else None,
        "finish_reason": deltas[-1].finish_reason,
        "stop_reason": deltas[-1].stop_reason,
        "routed_experts": _npy(np.concatenate(experts)) if experts else None,
        "sampling_mask": masks or None,
    }


def _logprobs_content(
    logprobs: Iterable[Logprobs], top_count: int | None
) -> Iterator[dict[str, Any]]:
    for part in logprobs:
        rows = zip(
            _array(part.token_ids).tolist(),
            _array(part.logprobs).tolist(),
            _array(part.ranks).tolist(),
            strict=True,
        )
        for token_ids, values, rank in rows:
            entries = list(_entries(token_ids, values, rank))
            shown = len(entries) if top_count in (None, -1) else max(top_count or 0, 1)
            yield {**entries[0], "top_logprobs": entries[:shown]}


def _prompt_logprobs(
    request: GenerateRequest, deltas: Sequence[TokenDelta]
) -> list[dict[str, Any] | None] | None:
    parts = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
    if request.sampling_params.get("prompt_logprobs") is None:
        return None
    positions: list[dict[str, Any] | None] = [None]
    for part in parts:
        rows = zip(
            _array(part.token_ids).tolist(),
            _array(part.logprobs).tolist(),
            _array(part.ranks).tolist(),
            strict=True,
        )
        for token_ids, values, rank in rows:
            positions.append(
                {
                    str(entry["token_id"]): {
                        "logprob": entry["logprob"],
                        "rank": entry["rank"],
                        "decoded_token": None,
                    }
                    for entry in _entries(token_ids, values, rank)
                }
            )
    return positions


def _entries(token_ids: list[int], logprobs: list[float], rank: int) -> Iterator[dict[str, Any]]:
    """Yield the sampled token, then the candidates in rank order, each id once."""
    seen = set()
    for position, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        if token_id in seen:
            continue
        seen.add(token_id)
        yield {
            "token_id": token_id,
            "logprob": LOWEST_LOGPROB if math.isnan(logprob) else max(logprob, LOWEST_LOGPROB),
            "rank": (rank or None) if position == 0 else position,
        }


def _sampling_mask(delta: TokenDelta) -> list[list[int]]:
    mask = delta.sampling_mask
    if mask is None:
        return []
    token_ids = _array(mask.token_ids).tolist()
    if mask.offsets is None:
        return [token_ids]
    offsets = _array(mask.offsets).tolist()
    return [token_ids[start:end] for start, end in pairwise(offsets)]


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _array(array: ArrayBytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape)


def _npy(array: np.ndarray[Any, Any]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
