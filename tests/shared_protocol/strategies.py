"""Random requests and answers that keep every rule of the wire."""

import math
from collections import defaultdict
from typing import Any

from hypothesis import strategies as st

from shared_protocol.answer import (
    AnswerFrame,
    ArrayBytes,
    EngineEvent,
    Failure,
    Logprobs,
    PrefillStats,
    SamplingMask,
    TokenDelta,
)
from shared_protocol.items import (
    BatchedField,
    FlatField,
    ItemElement,
    ItemField,
    MultiModalItem,
    NestedTensor,
    SharedField,
)
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import (
    MAX_TOKEN_ID,
    PROTOCOL_VERSION,
    Adapter,
    EmbedSpan,
    Features,
    GenerateRequest,
    PromptEmbeds,
    ReasoningParserKwargs,
)
from shared_protocol.tensors import DTYPE_SIZES, TensorRef

MODALITIES = ["image", "audio", "video", "prompt_embeds", "vision_chunk"]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.sampled_from(["pixel_values", "image_grid_thw", "input_features", "é", "_0"])
counts = st.integers(0, 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(int64, finite)
documents: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    text,
    st.recursive(
        st.one_of(st.none(), st.booleans(), numbers, text),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)
        ),
        max_leaves=4,
    ),
    max_size=3,
)


@st.composite
def tensors(draw: st.DrawFn, dtype: str | None = None, shape: tuple[int, ...] = ()) -> TensorRef:
    """Any tensor: scalars and empty ones too, unless told what it must look like."""
    dtype = dtype or draw(st.sampled_from(list(DTYPE_SIZES)))
    shape = shape or tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    nbytes = math.prod(shape) * DTYPE_SIZES[dtype]
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if dtype == "bool":
        data = bytes(byte & 1 for byte in data)
    return TensorRef(dtype, shape, data)


slices = st.tuples(*[st.none() | int64] * 3).map(list)


@st.composite
def flat_fields(draw: st.DrawFn) -> FlatField:
    dim = draw(st.integers(0, 2))
    entries = slices if dim == 0 else st.lists(slices, min_size=1, max_size=3)
    return FlatField(draw(st.lists(entries, max_size=3)), dim, draw(st.booleans()))


fields: st.SearchStrategy[ItemField] = st.one_of(
    st.builds(BatchedField, st.booleans()),
    flat_fields(),
    st.builds(SharedField, counts, st.booleans()),
)
leaves: st.SearchStrategy[NestedTensor] = st.one_of(tensors(), tensors(), numbers)
ragged: st.SearchStrategy[NestedTensor] = st.lists(
    st.one_of(leaves, st.lists(leaves, max_size=2)), max_size=3
)
elements = st.builds(ItemElement, st.one_of(st.none(), leaves, leaves, ragged), fields)
items = st.dictionaries(names, elements, min_size=1, max_size=3).map(MultiModalItem)


@st.composite
def placeholders(draw: st.DrawFn, prompt_length: int) -> list[PlaceholderRange]:
    """Ranges that may overlap, each embedding positions that no other one embeds."""
    owners = draw(
        st.lists(st.integers(0, 3), min_size=prompt_length, max_size=prompt_length).filter(any)
    )
    ranges = []
    for owner in sorted(set(owners) - {0}):
        owned = [position for position, other in enumerate(owners) if other == owner]
        offset = max(0, owned[0] - draw(st.integers(0, 2)))
        end = min(prompt_length, owned[-1] + 1 + draw(st.integers(0, 2)))
        mask = [other == owner for other in owners[offset:end]]
        dense = all(mask) and draw(st.booleans())
        ranges.append(PlaceholderRange(offset, end - offset, None if dense else mask))
    return sorted(ranges, key=lambda placeholder: placeholder.offset)


@st.composite
def features(draw: st.DrawFn, prompt_length: int) -> Features:
    by_modality = defaultdict(list)
    for placeholder in draw(placeholders(prompt_length)):
        by_modality[draw(st.sampled_from(MODALITIES))].append(placeholder)
    # Drawn from few, so that one object may stand at several places.
    known = [None, *draw(st.lists(items, min_size=1, max_size=2))]
    counted = {modality: len(ranges) for modality, ranges in by_modality.items()}

    def lists(of: st.SearchStrategy[Any]) -> dict[str, list[Any]]:
        return {
            modality: draw(st.lists(of, min_size=count, max_size=count))
            for modality, count in counted.items()
        }

    return Features(
        mm_hashes=lists(text.filter(bool)),
        mm_placeholders=dict(by_modality),
        kwargs_data=lists(st.sampled_from(known)) if draw(st.booleans()) else None,
        mm_metadata=lists(st.sampled_from(known)) if draw(st.booleans()) else None,
    )


@st.composite
def encoder_prompts(draw: st.DrawFn) -> dict[str, Any]:
    """The members of a request to an encoder-decoder: its one item begins with the prompt."""
    length = draw(st.integers(1, 12))
    placeholder = PlaceholderRange(0, draw(st.integers(1, length)))
    item = draw(items | st.none())
    modality = draw(st.sampled_from(MODALITIES))
    return {
        "encoder_token_ids": draw(
            st.lists(st.integers(0, MAX_TOKEN_ID), min_size=length, max_size=length)
        ),
        "features": Features(
            {modality: [draw(text.filter(bool))]}, {modality: [placeholder]}, {modality: [item]}
        ),
    }


@st.composite
def prompt_embeds(draw: st.DrawFn, prompt_length: int) -> PromptEmbeds:
    bounds = draw(
        st.lists(st.integers(0, prompt_length), min_size=2, max_size=6, unique=True).map(sorted)
    )
    spans = [
        EmbedSpan(start, end - start) for start, end in zip(bounds[::2], bounds[1::2], strict=False)
    ]
    hidden_size = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(["float16", "bfloat16", "float32"]))
    return PromptEmbeds(spans, [draw(tensors(dtype, (span.length, hidden_size))) for span in spans])


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    token_ids = draw(st.lists(st.integers(0, MAX_TOKEN_ID), min_size=1, max_size=12))
    prompt = draw(
        st.one_of(
            st.fixed_dictionaries({}),
            st.fixed_dictionaries({"features": features(len(token_ids))}),
            st.fixed_dictionaries({"prompt_embeds": prompt_embeds(len(token_ids))}),
            encoder_prompts(),
        )
    )
    optional = draw(st.fixed_dictionaries({}, optional=OPTIONAL_MEMBERS))
    return GenerateRequest(
        request_id=draw(text),
        token_ids=token_ids,
        sampling_params=draw(documents),
        **prompt,
        **optional,
    )


OPTIONAL_MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "token_offsets": st.lists(st.tuples(counts, counts), max_size=3),
    "model": text,
    "reasoning_ended": st.booleans(),
    "reasoning_parser_kwargs": st.builds(ReasoningParserKwargs, documents),
    "return_token_ids": st.booleans(),
    "stream": st.booleans() | st.none(),
    "stream_options": documents,
    "cache_salt": text,
    "priority": int64,
    "kv_transfer_params": documents,
    "ec_transfer_params": documents,
    "pooling_params": documents,
    "protocol_version": st.sampled_from([PROTOCOL_VERSION, "1", "1.7"]),
    "lora": st.builds(Adapter, text, counts, text, st.none() | text),
    "data_parallel_rank": counts,
    "session_id": text,
    "trace_headers": st.dictionaries(text, text, max_size=2),
    "abort_immediately": st.booleans(),
}

arrays = st.builds(
    ArrayBytes,
    st.sampled_from(["<i4", "<f4", "|u1"]),
    st.lists(counts, max_size=3).map(tuple),
    st.binary(max_size=40),
)
logprobs = st.builds(Logprobs, arrays, arrays, arrays)
DELTA_MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "index": counts,
    "token_ids": st.lists(st.integers(0, MAX_TOKEN_ID), max_size=4),
    "finish_reason": st.none()
    | st.sampled_from(["stop", "length", "abort", "error", "repetition"]),
    "stop_reason": st.one_of(st.none(), counts, text),
    "logprobs": st.none() | logprobs,
    "prompt_logprobs": st.none() | logprobs,
    "prompt_token_id_logprobs": st.none() | arrays,
    "timestamp": finite,
    "events": st.none() | st.lists(st.builds(EngineEvent, counts, finite), max_size=2),
    "prefill_stats": st.none() | st.builds(PrefillStats, counts, counts, counts),
    "kv_transfer_params": st.none() | documents,
    "ec_transfer_params": st.none() | documents,
    "weight_version": st.none() | text,
    "routed_experts": st.none() | arrays,
    "sampling_mask": st.none() | st.builds(SamplingMask, arrays, st.none() | arrays),
    "spec_decode_metrics": st.none() | documents,
    "num_nans_in_logits": counts,
    "pooling_output": st.none() | arrays,
}
deltas = st.builds(TokenDelta, **DELTA_MEMBERS)
failures = st.builds(Failure, text, st.integers(400, 599), st.none() | text)
frames: st.SearchStrategy[AnswerFrame] = st.one_of(deltas, failures)
