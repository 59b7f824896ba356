"""The request that render sends and generate answers: `GenerateRequest` and its parts.

A superset of the JSON that vLLM 0.32's own ``/inference/v1/generate`` takes: the members that
vLLM does not know are ``protocol_version``, ``is_embed`` in a placeholder, ``prompt_embeds`` and
those after it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from shared_protocol.errors import InvalidRequest, UnsupportedVersion
from shared_protocol.items import MultiModalItem
from shared_protocol.placeholders import PlaceholderRange, check_disjoint, check_placeholder
from shared_protocol.tensors import Buffer, TensorRef

PROTOCOL_VERSION: Final = "1.0"

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

MAX_TOKEN_ID: Final = 2**31 - 1
"""vLLM keeps token ids in int32 tensors."""

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
"""Its bounds are checked while JSON is parsed; a pass over the list would cost more."""


class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The multimodal items of a prompt; every list is parallel to ``mm_hashes[modality]``.

    Attributes:
        mm_hashes: content address of each item.
        mm_placeholders: where each item goes, in prompt order.
        kwargs_data: the items; None in place of one that `held_items` names.
        mm_metadata: a member of stock vLLM's request, not read: an item whose embeddings arrive
            through an EC connector comes in `kwargs_data`, with the members that prefill needs.
        held_items: in place of an item's data, the name that the replica gave it when it was sent
            it before (`held_items`).
    """

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: dict[str, list[MultiModalItem | None]] | None = None
    mm_metadata: dict[str, list[MultiModalItem | None]] | None = None
    held_items: dict[str, list[str | None]] | None = None


class EmbedSpan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompt positions whose embedding the client supplied."""

    offset: int
    length: int


class PromptEmbeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Supplied embeddings of a prompt without other modalities.

    Attributes:
        spans: sorted and disjoint.
        tensors: one a span, of shape ``(length, hidden_size)`` and the model's dtype.
    """

    spans: list[EmbedSpan]
    tensors: list[TensorRef]


class ReasoningParserKwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chat_template_kwargs: dict[str, Any] = {}


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter, as vLLM's ``LoRARequest`` names it; `path` is on the generate host."""

    name: str
    int_id: Int64
    path: str
    base_model_name: str | None = None


class GenerateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One generation.

    Attributes:
        token_ids: the prompt, every id inside the model's vocabulary: sentinels of supplied
            embeddings are zeroed by the render tier.
        sampling_params: vLLM's own fields by name, those that differ from vLLM's defaults or
            that the client set.
        token_offsets, content_parts: members of stock vLLM's request; the first is not read, the
            second, raw media, must be null: media are made tensors on the render tier.
        pooling_params: likewise; given, nothing is generated, and `sampling_params` is not read.
        abort_immediately: the render tier refused the request: nothing is generated, and the
            engine's KV connector frees what `kv_transfer_params` hold for it elsewhere.
        encoder_token_ids: what the encoder of an encoder-decoder is given, with the placeholders of
            its one item; ``token_ids`` is then what the decoder continues.
    """

    request_id: str
    token_ids: list[TokenId]
    sampling_params: dict[str, Any]
    token_offsets: list[tuple[int, int]] | None = None
    features: Features | None = None
    content_parts: None = None
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    protocol_version: str | None = None
    pooling_params: dict[str, Any] | None = None
    prompt_embeds: PromptEmbeds | None = None
    encoder_token_ids: list[TokenId] | None = None
    lora: Adapter | None = None
    data_parallel_rank: Int64 | None = None
    session_id: str | None = None
    trace_headers: dict[str, str] | None = None
    abort_immediately: bool = False


def check_request(request: GenerateRequest) -> GenerateRequest:
    """Return `request` if it keeps every rule that can be checked without knowing the model.

    Raises:
        InvalidRequest: with ``param`` naming the member that breaks a rule.
        UnsupportedVersion: for another major version of the wire.
    """
    _check_version(request.protocol_version)
    if not request.token_ids:
        raise InvalidRequest("token_ids must not be empty", param="token_ids")
    if request.encoder_token_ids is not None:
        _check_encoder_prompt(request.encoder_token_ids, request.features)
    if request.features is not None:
        # The items of an encoder-decoder lie in what its encoder is given.
        prompt = request.token_ids if (ids := request.encoder_token_ids) is None else ids
        _check_features(request.features, len(prompt))
    if request.prompt_embeds is not None:
        if request.features is not None:
            raise InvalidRequest(
                "prompt_embeds and features exclude each other: beside other modalities, "
                "supplied embeddings are items of the modality prompt_embeds",
                param="prompt_embeds",
            )
        _check_prompt_embeds(request.prompt_embeds, len(request.token_ids))
    if request.output_mode != "tokens":
        raise InvalidRequest(
            f"output_mode {request.output_mode!r} is not offered: text is made on the render "
            "tier, ask for 'tokens'",
            param="output_mode",
        )
    return request


class _Versioned(msgspec.Struct):
    protocol_version: str | None = None


def check_version(document: Buffer | str) -> None:
    """Raise `UnsupportedVersion` if a request's JSON is of another major version.

    Only to be asked about JSON that is not a request of this version.
    """
    with suppress(msgspec.DecodeError, RecursionError):
        _check_version(msgspec.json.decode(document, type=_Versioned).protocol_version)


def _check_version(version: str | None) -> None:
    if version is None:
        return
    major = version.partition(".")[0]
    if major != PROTOCOL_VERSION.partition(".")[0]:
        raise UnsupportedVersion(
            f"protocol_version {version!r} is not spoken here, {PROTOCOL_VERSION!r} is",
            param="protocol_version",
        )


def _check_encoder_prompt(token_ids: list[int], features: Features | None) -> None:
    if not token_ids:
        raise InvalidRequest("encoder_token_ids must not be empty", param="encoder_token_ids")
    if features is None:
        raise InvalidRequest(
            "encoder_token_ids stand for an item, features must hold it", param="features"
        )
    places = [(m, place) for m, ranges in features.mm_placeholders.items() for place in ranges]
    # The scheduler computes the encoder's output before the decoder's first token, and at no
    # other time.
    for modality, place in places:
        if place.offset or len(places) > 1:
            raise InvalidRequest(
                "The encoder takes one item, from its first token on",
                param=f"features.mm_placeholders.{modality}",
            )


def _check_features(features: Features, prompt_length: int) -> None:
    modalities = features.mm_hashes.keys()
    if not modalities:
        raise InvalidRequest("features must hold at least one item", param="features.mm_hashes")
    _check_parallel("mm_placeholders", features.mm_placeholders, features.mm_hashes)
    if features.kwargs_data is not None:
        _check_parallel("kwargs_data", features.kwargs_data, features.mm_hashes)
    if features.mm_metadata is not None:
        # Stock vLLM leaves out the modalities that need no metadata.
        described = {m: features.mm_hashes[m] for m in features.mm_metadata if m in modalities}
        _check_parallel("mm_metadata", features.mm_metadata, described)
    if features.held_items is not None:
        _check_parallel("held_items", features.held_items, features.mm_hashes)
        _check_held_items(features.held_items, features.kwargs_data or {})
    for modality, hashes in features.mm_hashes.items():
        # Modalities name tensors in the binary form: other names could name one tensor twice.
        if not modality.isidentifier():
            raise InvalidRequest(
                f"features.mm_hashes: the modality {modality!r} is not an identifier",
                param="features.mm_hashes",
            )
        if not hashes or not all(hashes):
            raise InvalidRequest(
                f"features.mm_hashes.{modality} must hold non-empty hashes",
                param=f"features.mm_hashes.{modality}",
            )
    for modality, placeholders in features.mm_placeholders.items():
        _check_placeholders(placeholders, modality, prompt_length)
    check_disjoint(
        chain.from_iterable(features.mm_placeholders.values()), param="features.mm_placeholders"
    )


def _check_held_items(
    held: Mapping[str, Sequence[str | None]], data: Mapping[str, Sequence[MultiModalItem | None]]
) -> None:
    for modality, names in held.items():
        items = data.get(modality, [None] * len(names))
        for index, (name, item) in enumerate(zip(names, items, strict=True)):
            if name is not None and item is not None:
                param = f"features.held_items.{modality}[{index}]"
                raise InvalidRequest(f"{param} is for an item without its data", param=param)


def _check_parallel(
    name: str, lists: Mapping[str, Sequence[Any]], hashes: Mapping[str, Sequence[str]]
) -> None:
    param = f"features.{name}"
    if lists.keys() != hashes.keys():
        raise InvalidRequest(
            f"{param} has the modalities {sorted(lists)}, mm_hashes has {sorted(hashes)}",
            param=param,
        )
    for modality, members in lists.items():
        expected = len(hashes[modality])
        if len(members) != expected:
            raise InvalidRequest(
                f"{param}.{modality} has {len(members)} entries, mm_hashes has {expected}",
                param=f"{param}.{modality}",
            )


def _check_placeholders(
    placeholders: list[PlaceholderRange], modality: str, prompt_length: int
) -> None:
    previous = -1
    for index, placeholder in enumerate(placeholders):
        param = f"features.mm_placeholders.{modality}[{index}]"
        check_placeholder(placeholder, prompt_length, param=param)
        if placeholder.offset < previous:
            raise InvalidRequest(
                f"{param} begins before the placeholder in front of it", param=param
            )
        previous = placeholder.offset


def _check_prompt_embeds(embeds: PromptEmbeds, prompt_length: int) -> None:
    if not embeds.spans or len(embeds.spans) != len(embeds.tensors):
        raise InvalidRequest(
            f"prompt_embeds has {len(embeds.spans)} spans and {len(embeds.tensors)} tensors, "
            "there must be as many, at least one",
            param="prompt_embeds",
        )
    end = 0
    for index, (span, tensor) in enumerate(zip(embeds.spans, embeds.tensors, strict=True)):
        param = f"prompt_embeds.spans[{index}]"
        if span.length < 1 or span.offset < end or span.offset + span.length > prompt_length:
            raise InvalidRequest(
                f"{param} ({span.offset}, {span.length}) must lie in the prompt's {prompt_length} "
                "positions, after the span in front of it",
                param=param,
            )
        end = span.offset + span.length
        if len(tensor.shape) != 2 or tensor.shape[0] != span.length:
            raise InvalidRequest(
                f"prompt_embeds.tensors[{index}] has shape {list(tensor.shape)}, its span needs "
                f"({span.length}, hidden_size)",
                param=f"prompt_embeds.tensors[{index}]",
            )
