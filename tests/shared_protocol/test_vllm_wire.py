"""The JSON form is vLLM's: the same bytes for an item, and requests that either side reads."""

import warnings
from typing import Any

import pytest
from hypothesis import given

from shared_protocol.items import (
    BatchedField,
    FlatField,
    ItemElement,
    ItemField,
    MultiModalItem,
    NestedTensor,
    SharedField,
)
from shared_protocol.json_codec import decode_item, decode_json, encode_item, encode_json
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.shared_protocol import strategies

with warnings.catch_warnings():
    # torch warns of its own functions while vLLM is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch
    from vllm.entrypoints.scale_out.token_in_token_out.mm_features import mm_kwargs_from_features
    from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import (
        decode_mm_kwargs_item,
        encode_mm_kwargs_item,
    )
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
        GenerateRequest as VllmGenerateRequest,
    )
    from vllm.multimodal.inputs import (
        BaseMultiModalField,
        MultiModalBatchedField,
        MultiModalFieldConfig,
        MultiModalFieldElem,
        MultiModalFlatField,
        MultiModalKwargsItem,
        MultiModalSharedField,
    )

# vLLM views the bytes that it received before it copies them.
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")

PIXELS = torch.arange(24, dtype=torch.float32).reshape(4, 3, 2)


def elements(config: MultiModalFieldConfig, data: Any) -> list[MultiModalFieldElem]:
    return list(config.field.build_elems("image", "key", data))


VLLM_ELEMENTS = {
    "batched": elements(MultiModalFieldConfig.batched("image"), PIXELS),
    "batched, kept on CPU": elements(
        MultiModalFieldConfig.batched("image", keep_on_cpu=True), PIXELS
    ),
    "batched list": elements(
        MultiModalFieldConfig.batched("image"), [PIXELS[0], [PIXELS[1], PIXELS[2].half()]]
    ),
    "batched numbers": elements(MultiModalFieldConfig.batched("image"), [2.0, 0.5, 7]),
    "batched scalars": elements(MultiModalFieldConfig.batched("image"), torch.tensor([1, 2])),
    "flat": elements(MultiModalFieldConfig.flat("image", [slice(0, 1), slice(1, 4)]), PIXELS),
    "flat by sizes": elements(
        MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([1, 0, 3]), keep_on_cpu=True),
        PIXELS,
    ),
    "flat along dimension 1": elements(
        MultiModalFieldConfig.flat(
            "image", [(slice(None), slice(0, 1)), (slice(None), slice(1, 3))], dim=1
        ),
        PIXELS,
    ),
    "flat by sizes along dimension 2": elements(
        MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([1, 1]), dim=2), PIXELS
    ),
    "shared": elements(MultiModalFieldConfig.shared("image", 2), PIXELS.to(torch.bfloat16)),
    "shared, kept on CPU": elements(
        MultiModalFieldConfig.shared("image", 1, keep_on_cpu=True), PIXELS.mT
    ),
}


@pytest.mark.parametrize("built", VLLM_ELEMENTS.values(), ids=VLLM_ELEMENTS)
def test_an_item_has_vllms_bytes_and_either_reads_the_other(
    built: list[MultiModalFieldElem],
) -> None:
    for element in built:
        theirs = MultiModalKwargsItem({"pixel_values": element, "again": element})
        ours = from_vllm(theirs)
        encoded = encode_mm_kwargs_item(theirs)
        assert encode_item(ours) == encoded
        assert decode_item(encoded, param="item") == ours
        assert_same(decode_mm_kwargs_item(encode_item(ours)), theirs)


@given(strategies.items)
def test_any_item_has_vllms_bytes_and_either_reads_the_other(ours: MultiModalItem) -> None:
    theirs = to_vllm(ours)
    assert encode_item(ours) == encode_mm_kwargs_item(theirs)
    assert_same(decode_mm_kwargs_item(encode_item(ours)), theirs)


def test_vllm_reads_our_request() -> None:
    item = from_vllm(MultiModalKwargsItem({"pixel_values": VLLM_ELEMENTS["batched"][0]}))
    ours = GenerateRequest(
        request_id="r",
        token_ids=[1, 2, 3, 4],
        sampling_params={"temperature": 0.5, "max_tokens": 7, "seed": 3},
        features=Features({"image": ["h"]}, {"image": [PlaceholderRange(1, 2)]}, {"image": [item]}),
        model="m",
        cache_salt="salt",
        priority=-1,
    )
    theirs = VllmGenerateRequest.model_validate_json(encode_json(ours))
    assert theirs.token_ids == ours.token_ids
    assert theirs.sampling_params.max_tokens == 7
    assert theirs.is_sampling_param_provided("seed")
    assert not theirs.is_sampling_param_provided("top_p")
    assert (theirs.model, theirs.cache_salt, theirs.priority) == ("m", "salt", -1)
    assert theirs.features is not None
    assert theirs.features.mm_placeholders["image"][0].offset == 1
    (read,) = mm_kwargs_from_features(theirs.features)["image"]
    assert_same(read, to_vllm(item))


def test_we_read_vllms_request() -> None:
    element = VLLM_ELEMENTS["flat"][1]
    theirs = VllmGenerateRequest.model_validate(
        {
            "request_id": "r",
            "token_ids": [1, 2, 3, 4],
            "sampling_params": {"temperature": 0.5, "max_tokens": 7},
            "features": {
                "mm_hashes": {"image": ["h"]},
                "mm_placeholders": {"image": [{"offset": 1, "length": 2}]},
                "kwargs_data": {
                    "image": [encode_mm_kwargs_item(MultiModalKwargsItem({"pixels": element}))]
                },
            },
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_parser_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
        }
    )
    ours = decode_json(theirs.model_dump_json().encode())
    assert ours.token_ids == [1, 2, 3, 4]
    assert ours.sampling_params["max_tokens"] == 7
    assert ours.features == Features(
        {"image": ["h"]},
        {"image": [PlaceholderRange(1, 2)]},
        {"image": [from_vllm(MultiModalKwargsItem({"pixels": element}))]},
    )


def from_vllm(item: MultiModalKwargsItem) -> MultiModalItem:
    return MultiModalItem(
        {
            key: ItemElement(wire_data(element.data), wire_field(element.field))
            for key, element in item.items()
        }
    )


def wire_data(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        raw = bytes(data.contiguous().reshape(-1).view(torch.uint8).tolist())
        return TensorRef(str(data.dtype).removeprefix("torch."), tuple(data.shape), raw)
    if isinstance(data, list):
        return [wire_data(member) for member in data]
    return data


def wire_field(field: BaseMultiModalField) -> ItemField:
    if isinstance(field, MultiModalFlatField):
        return FlatField([bounds(entry) for entry in field.slices], field.dim, field.keep_on_cpu)
    if isinstance(field, MultiModalSharedField):
        return SharedField(field.batch_size, field.keep_on_cpu)
    return BatchedField(field.keep_on_cpu)


def bounds(entry: Any) -> list[Any]:
    if isinstance(entry, slice):
        return [
            None if bound is None else int(bound) for bound in (entry.start, entry.stop, entry.step)
        ]
    return [bounds(member) for member in entry]


def to_vllm(item: MultiModalItem) -> MultiModalKwargsItem:
    return MultiModalKwargsItem(
        {
            key: MultiModalFieldElem(vllm_data(element.data), vllm_field(element.field))
            for key, element in item.elements.items()
        }
    )


def vllm_data(data: NestedTensor | None) -> Any:
    if isinstance(data, list):
        return [vllm_data(member) for member in data]
    if not isinstance(data, TensorRef):
        return data
    dtype = getattr(torch, data.dtype)
    if not data.nbytes:
        return torch.empty(data.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data.data), dtype=dtype).reshape(data.shape)


def vllm_field(field: ItemField) -> BaseMultiModalField:
    if isinstance(field, FlatField):
        entries: list[Any] = field.slices
        cut = [
            slice(*entry) if field.dim == 0 else [slice(*axis) for axis in entry]
            for entry in entries
        ]
        return MultiModalFlatField(slices=cut, dim=field.dim, keep_on_cpu=field.keep_on_cpu)
    if isinstance(field, SharedField):
        return MultiModalSharedField(batch_size=field.batch_size, keep_on_cpu=field.keep_on_cpu)
    return MultiModalBatchedField(keep_on_cpu=field.keep_on_cpu)


def assert_same(item: MultiModalKwargsItem, expected: MultiModalKwargsItem) -> None:
    """Equal with dtypes, which vLLM's own comparison does not look at, and NaN as itself."""
    assert from_vllm(item) == from_vllm(expected)
