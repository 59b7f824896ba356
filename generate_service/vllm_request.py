"""From the wire's request to what vLLM's engine takes: the mirror of render's file of this name."""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import torch
from msgspec.structs import fields
from vllm.exceptions import VLLMValidationError
from vllm.inputs import (
    EncoderDecoderInput,
    EngineInput,
    MultiModalInput,
    embeds_input,
    mm_input,
    tokens_input,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import (
    BaseMultiModalField,
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    MultiModalSharedField,
    PlaceholderRange,
)
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind, SamplingParams

from shared_protocol import placeholders as wire
from shared_protocol.errors import InvalidRequest, MissingFeatures
from shared_protocol.items import (
    FlatField,
    ItemField,
    MultiModalItem,
    NestedTensor,
    SharedField,
)
from shared_protocol.json_codec import invalid_member
from shared_protocol.request import Adapter, Features, GenerateRequest, PromptEmbeds
from shared_protocol.tensors import TensorRef

_SAMPLING_FIELDS: Final = frozenset(
    name for name in SamplingParams.__struct_fields__ if not name.startswith("_")
)

_POOLING_FIELDS: Final = frozenset(PoolingParams.__struct_fields__) - {"output_kind"}

StructT = TypeVar("StructT")


@dataclass(frozen=True)
class EngineRequest:
    """A request in vLLM's own types, ready for `vllm_engine.Engine.generate`."""

    request_id: str
    prompt: EngineInput
    params: SamplingParams | PoolingParams
    lora: LoRARequest | None
    priority: int
    data_parallel_rank: int | None
    session_id: str | None
    trace_headers: dict[str, str] | None
    reasoning_ended: bool | None
    reasoning_parser_kwargs: dict[str, Any] | None
    abort_immediately: bool


def decode_request(request: GenerateRequest, *, default_max_tokens: int | None) -> EngineRequest:
    """Rebuild tensors and parameters; shares the memory of the tensors in `request`.

    Args:
        default_max_tokens: limit for a request that names none.

    Raises:
        InvalidRequest: for sampling parameters that vLLM has not or would refuse.
        MissingFeatures: for items that came without their data.
    """
    lora = request.lora
    reasoning = request.reasoning_parser_kwargs
    return EngineRequest(
        request_id=request.request_id,
        prompt=decode_prompt(request),
        params=decode_sampling_params(request, default_max_tokens=default_max_tokens)
        if request.pooling_params is None
        else decode_pooling_params(request.pooling_params),
        lora=None if lora is None else decode_adapter(lora),
        priority=request.priority,
        data_parallel_rank=request.data_parallel_rank,
        session_id=request.session_id,
        trace_headers=request.trace_headers,
        reasoning_ended=request.reasoning_ended,
        reasoning_parser_kwargs=None if reasoning is None else msgspec.to_builtins(reasoning),
        abort_immediately=request.abort_immediately,
    )


def decode_adapter(adapter: Adapter) -> LoRARequest:
    return LoRARequest(
        adapter.name, adapter.int_id, adapter.path, base_model_name=adapter.base_model_name
    )


def decode_prompt(request: GenerateRequest) -> EngineInput:
    if request.features is not None:
        decoder = _decode_multimodal(request.token_ids, request.features, request.cache_salt)
        if request.encoder_token_ids is None:
            return decoder
        return EncoderDecoderInput(
            type="enc_dec",
            encoder_prompt=tokens_input(request.encoder_token_ids),
            decoder_prompt=decoder,
        )
    if request.prompt_embeds is not None:
        return _decode_embeds(request.token_ids, request.prompt_embeds, request.cache_salt)
    return tokens_input(request.token_ids, cache_salt=request.cache_salt)


def _decode_multimodal(
    token_ids: list[int], features: Features, cache_salt: str | None
) -> MultiModalInput:
    return mm_input(
        prompt_token_ids=token_ids,
        mm_kwargs=MultiModalKwargsItems(_decode_items(features)),
        mm_hashes=features.mm_hashes,
        mm_placeholders={
            modality: [decode_placeholder(placeholder) for placeholder in placeholders]
            for modality, placeholders in features.mm_placeholders.items()
        },
        cache_salt=cache_salt,
    )


def decode_placeholder(placeholder: wire.PlaceholderRange) -> PlaceholderRange:
    mask = placeholder.is_embed
    return PlaceholderRange(
        offset=placeholder.offset,
        length=placeholder.length,
        is_embed=None if mask is None else torch.tensor(mask, dtype=torch.bool),
    )


def decode_tensor(tensor: TensorRef) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    if not tensor.nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    view = memoryview(tensor.data)
    # torch warns of read-only memory, since it cannot keep a tensor from being written.
    buffer = bytearray(view) if view.readonly else view
    return torch.frombuffer(buffer, dtype=dtype).view(tensor.shape)


def _decode_items(features: Features) -> dict[str, list[MultiModalKwargsItem]]:
    data = features.kwargs_data or {}
    missing = [
        mm_hash
        for modality, hashes in features.mm_hashes.items()
        for mm_hash, item in zip(hashes, data.get(modality, [None] * len(hashes)), strict=True)
        if item is None
    ]
    if missing:
        raise MissingFeatures(missing)
    return {
        modality: [_decode_item(item) for item in items if item is not None]
        for modality, items in data.items()
    }


def _decode_item(item: MultiModalItem) -> MultiModalKwargsItem:
    return MultiModalKwargsItem(
        {
            key: MultiModalFieldElem(
                data=None if element.data is None else _decode_nested(element.data),
                field=_decode_field(element.field),
            )
            for key, element in item.elements.items()
        }
    )


def _decode_nested(data: NestedTensor) -> Any:
    if isinstance(data, TensorRef):
        return decode_tensor(data)
    if isinstance(data, list):
        return [_decode_nested(member) for member in data]
    return data


def _decode_field(field: ItemField) -> BaseMultiModalField:
    if isinstance(field, FlatField):
        return MultiModalFlatField(
            slices=[_decode_slice(entry) for entry in field.slices],
            dim=field.dim,
            keep_on_cpu=field.keep_on_cpu,
        )
    if isinstance(field, SharedField):
        return MultiModalSharedField(batch_size=field.batch_size, keep_on_cpu=field.keep_on_cpu)
    return MultiModalBatchedField(keep_on_cpu=field.keep_on_cpu)


def _decode_slice(entry: list[Any]) -> slice | tuple[slice, ...]:
    if any(isinstance(member, list) for member in entry):
        return tuple(slice(*bounds) for bounds in entry)
    return slice(*entry)


def _decode_embeds(
    token_ids: list[int], embeds: PromptEmbeds, cache_salt: str | None
) -> EngineInput:
    """Rebuild the ``(prompt length, hidden_size)`` embedding and its mask of real token ids."""
    tensors = [decode_tensor(tensor) for tensor in embeds.tensors]
    first = tensors[0]
    if first.shape[0] == len(token_ids):
        return embeds_input(first, cache_salt=cache_salt)
    full = first.new_zeros(len(token_ids), first.shape[1])
    is_token_ids = [True] * len(token_ids)
    for span, tensor in zip(embeds.spans, tensors, strict=True):
        full[span.offset : span.offset + span.length] = tensor
        is_token_ids[span.offset : span.offset + span.length] = [False] * span.length
    return embeds_input(
        full, cache_salt=cache_salt, prompt_token_ids=token_ids, is_token_ids=is_token_ids
    )


def decode_sampling_params(
    request: GenerateRequest, *, default_max_tokens: int | None
) -> SamplingParams:
    """Build vLLM's parameters for an engine that makes no text.

    Raises:
        InvalidRequest: with ``param`` naming the parameter where vLLM says which it is.
    """
    given = request.sampling_params
    _check_names(given, _SAMPLING_FIELDS, "sampling_params")
    if given.get("stop"):
        raise InvalidRequest(
            "sampling_params.stop is found on the render tier: no text is made here, use "
            "stop_token_ids",
            param="sampling_params.stop",
        )
    extra_args = given.get("extra_args") or {}
    if not isinstance(extra_args, dict):
        raise InvalidRequest(
            "sampling_params.extra_args must be an object", param="sampling_params.extra_args"
        )
    extra_args = dict(extra_args)
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if (value := getattr(request, name)) is not None:
            extra_args[name] = value
    members = {
        **given,
        "max_tokens": given.get("max_tokens", default_max_tokens),
        "detokenize": False,
        "output_kind": RequestOutputKind.DELTA.value,
        "output_text_buffer_length": 0,
        "skip_clone": True,
        "extra_args": extra_args or None,
    }
    params = _convert(members, SamplingParams, "sampling_params")
    # The n-th choice has the n-th seed behind this one; the engine counts in 64 bits.
    if params.seed is not None and not -(2**63) <= params.seed < 2**63 - params.n:
        raise InvalidRequest(
            "sampling_params.seed must fit into 64 bits", param="sampling_params.seed"
        )
    return params


def decode_pooling_params(given: dict[str, Any]) -> PoolingParams:
    """Build vLLM's parameters of a request that pools.

    Raises:
        InvalidRequest: with ``param`` naming the parameter where vLLM says which it is.
    """
    _check_names(given, _POOLING_FIELDS, "pooling_params")
    # vLLM's struct is an array on its own wires.
    members = [
        given.get(field.name, msgspec.to_builtins(field.default)) for field in fields(PoolingParams)
    ]
    return _convert(members, PoolingParams, "pooling_params")


def _decode_rows(kind: type, rows: Any) -> Any:
    """Build the one parameter that is an array: rows of token ids to score, all as long."""
    if kind is not np.ndarray:
        raise TypeError(f"{kind.__name__} does not cross the wire")
    return np.array(rows, dtype=np.int32)


def _check_names(given: dict[str, Any], known: frozenset[str], param: str) -> None:
    # A peer of another release may write fields that are not for the wire.
    if unknown := sorted(given.keys() - known):
        raise InvalidRequest(
            f"{param}.{unknown[0]} is not a parameter of this vLLM", param=f"{param}.{unknown[0]}"
        )


def _convert(members: Any, kind: type[StructT], param: str) -> StructT:
    try:
        # JSON turns the integer keys of logit_bias into strings.
        return msgspec.convert(members, kind, str_keys=True, dec_hook=_decode_rows)
    except VLLMValidationError as error:
        name = error.parameter or ""
        raise InvalidRequest(
            f"{param}: {error.args[0]}", param=f"{param}.{name}".rstrip(".")
        ) from error
    except msgspec.ValidationError as error:
        invalid = invalid_member(error)
        raise InvalidRequest(
            f"{param}.{invalid.message}",
            param=f"{param}.{invalid.param}" if invalid.param else param,
        ) from error
