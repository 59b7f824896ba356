"""What generate answers: one `TokenDelta` an engine step, then a last one or a `Failure`.

A delta carries what vLLM's engine core hands to its front end, before any text is made of it, so
that the render tier can feed vLLM's own output processor with it. Arrays are raw little-endian
bytes: JSON would turn an infinite logprob into null.
"""

from typing import Any, Final, TypeAlias

import msgspec

FRAMES_CONTENT_TYPE: Final = "application/vnd.tandem.generate+msgpack"


class ArrayBytes(msgspec.Struct, frozen=True, array_like=True):
    """An array: numpy's dtype string (``<f4``), its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of consecutive positions.

    Attributes:
        token_ids: int32 (positions, 1 + k), the sampled or prompt token first.
        logprobs: float32 of the same shape.
        ranks: int32 (positions,), of the first token.
    """

    token_ids: ArrayBytes
    logprobs: ArrayBytes
    ranks: ArrayBytes


class SamplingMask(msgspec.Struct, frozen=True, array_like=True):
    """Ids that sampling chose from, position after position; `offsets` cuts them apart."""

    token_ids: ArrayBytes
    offsets: ArrayBytes | None = None


class EngineEvent(msgspec.Struct, frozen=True, array_like=True):
    """A scheduling event (vLLM's ``EngineCoreEventType``) at a time of the engine's clock."""

    type: int
    timestamp: float


class PrefillStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the prompt's tokens came from; the members of vLLM's class of that name."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0


class TokenDelta(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="d"):
    """What one choice gained in one engine step; the result, for a request that pools.

    Attributes:
        index: the choice, below ``n``.
        finish_reason: stop, length, abort, error or repetition on the last delta of a choice.
        timestamp: seconds of the engine's monotonic clock; only differences mean anything.
    """

    index: int = 0
    token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    prompt_token_id_logprobs: ArrayBytes | None = None
    timestamp: float = 0.0
    events: list[EngineEvent] | None = None
    prefill_stats: PrefillStats | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    weight_version: str | None = None
    routed_experts: ArrayBytes | None = None
    sampling_mask: SamplingMask | None = None
    spec_decode_metrics: dict[str, Any] | None = None
    num_nans_in_logits: int = 0
    pooling_output: ArrayBytes | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="f"):
    """The end of a stream that cannot go on; nothing follows it."""

    message: str
    status: int = 500
    param: str | None = None


AnswerFrame: TypeAlias = TokenDelta | Failure
