"""From the wire's deltas to what vLLM's output processor takes: the mirror of generate's file."""

from typing import Any, Final

import msgspec
import numpy as np
import torch
from vllm.v1.engine import (
    FINISH_REASON_STRINGS,
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    FinishReason,
)
from vllm.v1.metrics.stats import PrefillStats, RequestSpecDecodeMetrics
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, SamplingMaskLists

from shared_protocol import answer as wire

_FINISH_REASONS: Final = {
    name: FinishReason(value) for value, name in enumerate(FINISH_REASON_STRINGS)
}


def decode_delta(delta: wire.TokenDelta, *, request_id: str) -> EngineCoreOutput:
    """Rebuild one step's output of the request that this process calls `request_id`."""
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=delta.token_ids,
        new_logprobs=_decode_logprobs(delta.logprobs),
        new_prompt_logprobs_tensors=_decode_prompt_logprobs(delta.prompt_logprobs),
        finish_reason=None if delta.finish_reason is None else _FINISH_REASONS[delta.finish_reason],
        stop_reason=delta.stop_reason,
        events=_decode_events(delta),
        kv_transfer_params=delta.kv_transfer_params,
        ec_transfer_params=delta.ec_transfer_params,
        prefill_stats=_decode_prefill_stats(delta),
        routed_experts=_optional_array(delta.routed_experts),
        num_nans_in_logits=delta.num_nans_in_logits,
        new_sampling_mask=_decode_sampling_mask(delta.sampling_mask),
        spec_decode_metrics=_decode_spec_decode(delta),
        prompt_token_id_logprobs=_optional_tensor(delta.prompt_token_id_logprobs),
        pooling_output=_optional_tensor(delta.pooling_output),
    )


def _decode_array(array: wire.ArrayBytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape)


def _optional_array(array: wire.ArrayBytes | None) -> np.ndarray[Any, Any] | None:
    return None if array is None else _decode_array(array)


def _optional_tensor(array: wire.ArrayBytes | None) -> torch.Tensor | None:
    return None if array is None else torch.tensor(_decode_array(array))


def _decode_logprobs(logprobs: wire.Logprobs | None) -> LogprobsLists | None:
    if logprobs is None:
        return None
    return LogprobsLists(
        _decode_array(logprobs.token_ids),
        _decode_array(logprobs.logprobs),
        _decode_array(logprobs.ranks),
    )


def _decode_prompt_logprobs(logprobs: wire.Logprobs | None) -> LogprobsTensors | None:
    if logprobs is None:
        return None
    arrays = (logprobs.token_ids, logprobs.logprobs, logprobs.ranks)
    return LogprobsTensors(*(torch.tensor(_decode_array(array)) for array in arrays))


def _decode_events(delta: wire.TokenDelta) -> list[EngineCoreEvent] | None:
    if delta.events is None:
        return None
    return [
        EngineCoreEvent(EngineCoreEventType(event.type), event.timestamp) for event in delta.events
    ]


def _decode_prefill_stats(delta: wire.TokenDelta) -> PrefillStats | None:
    stats = delta.prefill_stats
    return None if stats is None else PrefillStats(**msgspec.structs.asdict(stats))


def _decode_sampling_mask(mask: wire.SamplingMask | None) -> SamplingMaskLists | None:
    if mask is None:
        return None
    return SamplingMaskLists(_decode_array(mask.token_ids), _optional_array(mask.offsets))


def _decode_spec_decode(delta: wire.TokenDelta) -> RequestSpecDecodeMetrics | None:
    if delta.spec_decode_metrics is None:
        return None
    return msgspec.convert(delta.spec_decode_metrics, RequestSpecDecodeMetrics)
