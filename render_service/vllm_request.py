"""From what vLLM's renderer made to the wire's request: the mirror of generate's file."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch
from vllm.inputs import SingletonInput
from vllm.multimodal.inputs import (
    BaseMultiModalField,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalSharedField,
    PlaceholderRange,
)
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind, SamplingParams

from render_service.sentinels import spans_of_mask
from shared_protocol import placeholders as wire
from shared_protocol.items import (
    BatchedField,
    FlatField,
    ItemElement,
    ItemField,
    MultiModalItem,
    NestedTensor,
    SharedField,
)
from shared_protocol.request import EmbedSpan, Features, PromptEmbeds
from shared_protocol.tensors import TensorRef

_OF_THIS_TIER: Final = frozenset(
    {
        "detokenize",
        "flat_logprobs",
        "include_stop_str_in_output",
        "output_kind",
        "output_text_buffer_length",
        "skip_clone",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stream_interval",
    }
)
"""Sampling parameters that shape the text, which is made on this tier, or vLLM's own plumbing."""

_APART: Final = ("kv_transfer_params", "ec_transfer_params")
"""Members of ``extra_args`` that the wire names outside the sampling parameters."""


def encode_features(prompt: SingletonInput) -> Features | None:
    """Take the multimodal items of a rendered prompt; tensors are referred to, not copied."""
    if prompt["type"] != "multimodal":
        return None
    return Features(
        mm_hashes={modality: list(hashes) for modality, hashes in prompt["mm_hashes"].items()},
        mm_placeholders=encode_placeholders(prompt["mm_placeholders"]),
        kwargs_data={
            modality: _encode_items(items) for modality, items in prompt["mm_kwargs"].items()
        },
    )


def _encode_items(items: Sequence[MultiModalKwargsItem | None]) -> list[MultiModalItem | None]:
    """Encode each item once: an image that a prompt has twice is one object, and stays one."""
    encoded = {id(item): encode_item(item) for item in items if item is not None}
    return [encoded.get(id(item)) for item in items]


def encode_placeholders(
    placeholders: Mapping[str, Any],
) -> dict[str, list[wire.PlaceholderRange]]:
    return {
        modality: [_encode_placeholder(placeholder) for placeholder in ranges]
        for modality, ranges in placeholders.items()
    }


def _encode_placeholder(placeholder: PlaceholderRange) -> wire.PlaceholderRange:
    mask = placeholder.is_embed
    return wire.PlaceholderRange(
        offset=placeholder.offset,
        length=placeholder.length,
        is_embed=None if mask is None else mask.to(torch.bool).tolist(),
    )


def encode_prompt_embeds(prompt: SingletonInput) -> PromptEmbeds | None:
    """Cut the supplied rows out of the full ``(prompt length, hidden_size)`` embedding."""
    if prompt["type"] != "embeds":
        return None
    embeds = prompt["prompt_embeds"]
    is_token_ids = prompt.get("is_token_ids", [False] * len(embeds))
    spans = [EmbedSpan(offset, length) for offset, length in spans_of_mask(is_token_ids)]
    if not spans:
        # The prompt was truncated to a part that has none of them.
        return None
    return PromptEmbeds(
        spans=spans,
        tensors=[encode_tensor(embeds[span.offset : span.offset + span.length]) for span in spans],
    )


def encode_item(item: MultiModalKwargsItem) -> MultiModalItem:
    return MultiModalItem(
        {
            key: ItemElement(
                data=None if element.data is None else _encode_nested(element.data),
                field=_encode_field(element.field),
            )
            for key, element in item.items()
        }
    )


def encode_tensor(tensor: torch.Tensor) -> TensorRef:
    values = tensor.detach().cpu().contiguous()
    dtype = str(values.dtype).removeprefix("torch.")
    # As bytes: numpy, whose memory can be viewed, has no bfloat16.
    raw = values.flatten().view(torch.uint8).numpy().data if values.numel() else memoryview(b"")
    return TensorRef(dtype, tuple(values.shape), raw)


def _encode_nested(data: Any) -> NestedTensor:
    if isinstance(data, torch.Tensor):
        return encode_tensor(data)
    if isinstance(data, int | float):
        return data
    return [_encode_nested(member) for member in data]


def _encode_field(field: BaseMultiModalField) -> ItemField:
    if isinstance(field, MultiModalFlatField):
        return FlatField(
            slices=[_encode_slice(entry) for entry in field.slices],
            dim=field.dim,
            keep_on_cpu=field.keep_on_cpu,
        )
    if isinstance(field, MultiModalSharedField):
        return SharedField(batch_size=field.batch_size, keep_on_cpu=field.keep_on_cpu)
    return BatchedField(keep_on_cpu=field.keep_on_cpu)


def _encode_slice(entry: Any) -> list[Any]:
    if isinstance(entry, slice):
        bounds = (entry.start, entry.stop, entry.step)
        return [None if bound is None else int(bound) for bound in bounds]
    return [_encode_slice(member) for member in entry]


def encode_params(params: SamplingParams | PoolingParams) -> dict[str, Any]:
    """Return the members of the wire's request that say what is to be done with the prompt."""
    if isinstance(params, PoolingParams):
        return {"sampling_params": {}, "pooling_params": _encode_pooling_params(params)}
    fields, apart = encode_sampling_params(params)
    # A stop string is found on this tier, which therefore has to see the tokens as they come.
    stream = bool(params.stop) or params.output_kind is RequestOutputKind.DELTA
    return {"sampling_params": fields, "stream": stream, **apart}


def _encode_pooling_params(params: PoolingParams) -> dict[str, Any]:
    members = zip(PoolingParams.__struct_fields__, msgspec.to_builtins(params), strict=False)
    return {name: value for name, value in members if value is not None and name != "output_kind"}


def encode_sampling_params(params: SamplingParams) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take what the engine must know of `params`.

    Returns:
        The fields that differ from vLLM's defaults, always with ``max_tokens`` (16 is vLLM's
        default and would be lost), and those of ``extra_args`` that the wire names itself.
    """
    fields = {
        name: value
        for name, value in _to_builtins(params).items()
        if name not in _OF_THIS_TIER and not name.startswith("_")
    }
    fields["max_tokens"] = params.max_tokens
    if params.structured_outputs is not None:
        # vLLM resolves the backend again, and may refuse one that it finds resolved.
        fields["structured_outputs"] = {
            name: value
            for name, value in fields["structured_outputs"].items()
            if not name.startswith("_")
        }
    extra_args = fields.pop("extra_args", None) or {}
    apart = {name: extra_args[name] for name in _APART if name in extra_args}
    if rest := {name: value for name, value in extra_args.items() if name not in _APART}:
        fields["extra_args"] = rest
    return fields, apart


def _to_builtins(params: SamplingParams) -> dict[str, Any]:
    def encode_array(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        raise TypeError(f"{type(value).__name__} does not cross the wire")

    builtins: dict[str, Any] = msgspec.to_builtins(params, enc_hook=encode_array)
    return builtins
