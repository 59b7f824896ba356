"""From what vLLM's engine core yields to the wire's deltas: the mirror of render's file."""

from typing import Any

import msgspec
import numpy as np
import torch
from vllm.v1.engine import EngineCoreOutput

from shared_protocol.answer import (
    ArrayBytes,
    EngineEvent,
    Logprobs,
    PrefillStats,
    SamplingMask,
    TokenDelta,
)


def encode_delta(
    output: EngineCoreOutput, *, index: int, timestamp: float, weight_version: str | None
) -> TokenDelta:
    """Take what one engine step gave to one choice.

    Args:
        index: the choice.
        timestamp: when the step ended, on the engine's monotonic clock, in seconds.
    """
    finish_reason = output.finish_reason
    return TokenDelta(
        index=index,
        token_ids=output.new_token_ids,
        finish_reason=None if finish_reason is None else str(finish_reason),
        stop_reason=output.stop_reason,
        logprobs=_encode_logprobs(output.new_logprobs),
        prompt_logprobs=_encode_logprobs(output.new_prompt_logprobs_tensors),
        prompt_token_id_logprobs=_encode_array(output.prompt_token_id_logprobs),
        timestamp=timestamp,
        events=_encode_events(output),
        prefill_stats=_encode_prefill_stats(output),
        kv_transfer_params=output.kv_transfer_params,
        ec_transfer_params=output.ec_transfer_params,
        weight_version=weight_version,
        routed_experts=_encode_array(output.routed_experts),
        sampling_mask=_encode_sampling_mask(output),
        spec_decode_metrics=_encode_spec_decode(output),
        num_nans_in_logits=output.num_nans_in_logits,
        pooling_output=_encode_array(output.pooling_output),
    )


def _encode_array(array: np.ndarray[Any, Any] | torch.Tensor | None) -> ArrayBytes | None:
    if array is None:
        return None
    values = _to_numpy(array) if isinstance(array, torch.Tensor) else array
    return ArrayBytes(values.dtype.str, values.shape, values.tobytes())


def _to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    # numpy has no bfloat16; float32 holds its values exactly, and is what clients are given.
    widened = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    return widened.cpu().numpy()


def _encode_logprobs(logprobs: Any) -> Logprobs | None:
    """Take the first three members of vLLM's LogprobsLists or LogprobsTensors."""
    if logprobs is None:
        return None
    arrays = [_encode_array(array) for array in logprobs[:3]]
    return Logprobs(*arrays)  # type: ignore[arg-type]


def _encode_events(output: EngineCoreOutput) -> list[EngineEvent] | None:
    if not output.events:
        return None
    return [EngineEvent(int(event.type), event.timestamp) for event in output.events]


def _encode_prefill_stats(output: EngineCoreOutput) -> PrefillStats | None:
    stats = output.prefill_stats
    if stats is None:
        return None
    return PrefillStats(*(getattr(stats, name) for name in PrefillStats.__struct_fields__))


def _encode_sampling_mask(output: EngineCoreOutput) -> SamplingMask | None:
    mask = output.new_sampling_mask
    if mask is None:
        return None
    return SamplingMask(_encode_array(mask.token_ids), _encode_array(mask.offsets))  # type: ignore[arg-type]


def _encode_spec_decode(output: EngineCoreOutput) -> dict[str, Any] | None:
    metrics = output.spec_decode_metrics
    return None if metrics is None else msgspec.to_builtins(metrics)
