"""What a request must keep to before any model is asked: who breaks it, and what it is told."""

import binascii
import struct
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from shared_protocol.errors import InvalidRequest, UnsupportedVersion
from shared_protocol.items import BatchedField, ItemElement, MultiModalItem
from shared_protocol.json_codec import encode_item
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import EmbedSpan, Features, GenerateRequest, PromptEmbeds
from shared_protocol.tensors import TensorRef
from tests.shared_protocol.bodies import (
    DECODERS,
    ENCODERS,
    container,
    json_of,
    with_json,
)

encodings = pytest.mark.parametrize("encoding", ENCODERS)

TEXT = GenerateRequest(request_id="r", token_ids=list(range(10)), sampling_params={})
ITEM = MultiModalItem({"pixels": ItemElement(TensorRef("uint8", (2,), b"ab"), BatchedField())})


def text(**members: Any) -> GenerateRequest:
    return replace(TEXT, **members)


def images(*placeholders: PlaceholderRange, **members: Any) -> GenerateRequest:
    features = Features(
        {"image": [f"hash {index}" for index in range(len(placeholders))]},
        {"image": list(placeholders)},
        {"image": [ITEM] * len(placeholders)},
    )
    return text(features=replace(features, **members))


def video_and_audio(video: PlaceholderRange, audio: PlaceholderRange) -> GenerateRequest:
    return text(
        features=Features({"video": ["v"], "audio": ["a"]}, {"video": [video], "audio": [audio]})
    )


def encoded(*placeholders: PlaceholderRange, **members: Any) -> GenerateRequest:
    """A request to an encoder-decoder, with the longer prompt for its encoder."""
    return replace(images(*placeholders), **{"encoder_token_ids": [0] * 20, **members})


def rows(count: int) -> TensorRef:
    return TensorRef("float16", (count, 2), bytes(4 * count))


def embeds(*spans: tuple[int, int], tensors: list[TensorRef] | None = None) -> GenerateRequest:
    tensors = [rows(max(0, length)) for _, length in spans] if tensors is None else tensors
    return text(prompt_embeds=PromptEmbeds([EmbedSpan(*span) for span in spans], tensors))


DENSE = PlaceholderRange(1, 4)
IMAGE = images(DENSE)

KEPT = {
    "text": TEXT,
    "another minor version": text(protocol_version="1.9"),
    "dense": IMAGE,
    "ranges that touch": images(DENSE, PlaceholderRange(5, 5)),
    "no item sent": images(DENSE, kwargs_data=None),
    "an item by hash": images(DENSE, kwargs_data={"image": [None]}),
    "metadata of no modality": images(DENSE, mm_metadata={}),
    "complementary masks": video_and_audio(
        PlaceholderRange(1, 4, [True, False, True, True]), PlaceholderRange(2, 1)
    ),
    "embeddings": embeds((0, 3), (3, 1), (8, 2)),
    "an encoder's prompt": encoded(PlaceholderRange(0, 20)),
}

BROKEN = {
    "no tokens": (text(token_ids=[]), "token_ids", "must not be empty"),
    "negative token": (text(token_ids=[1, -1]), "token_ids[1]", ""),
    "newer version": (text(protocol_version="2.0"), "protocol_version", "'1.0' is"),
    "older version": (text(protocol_version="0.9"), "protocol_version", "'0.9' is not spoken"),
    "no version": (text(protocol_version=""), "protocol_version", "'' is not spoken"),
    "text output": (text(output_mode="text"), "output_mode", "ask for 'tokens'"),
    "features without items": (
        text(features=Features({}, {})),
        "features.mm_hashes",
        "at least one item",
    ),
    "modality that is no identifier": (
        text(features=Features({"metadata/image": ["h"]}, {"metadata/image": [DENSE]})),
        "features.mm_hashes",
        "'metadata/image' is not an identifier",
    ),
    "modality without hashes": (
        images(mm_hashes={"image": []}, mm_placeholders={"image": []}),
        "features.mm_hashes.image",
        "non-empty hashes",
    ),
    "empty hash": (
        images(DENSE, mm_hashes={"image": [""]}),
        "features.mm_hashes.image",
        "non-empty hashes",
    ),
    "placeholders of another modality": (
        images(DENSE, mm_placeholders={"audio": [DENSE]}),
        "features.mm_placeholders",
        "has the modalities ['audio'], mm_hashes has ['image']",
    ),
    "too few placeholders": (
        images(DENSE, mm_placeholders={"image": []}),
        "features.mm_placeholders.image",
        "has 0 entries, mm_hashes has 1",
    ),
    "items of another modality": (
        images(DENSE, kwargs_data={"image": [ITEM], "audio": []}),
        "features.kwargs_data",
        "has the modalities ['audio', 'image']",
    ),
    "too many items": (
        images(DENSE, kwargs_data={"image": [ITEM, None]}),
        "features.kwargs_data.image",
        "has 2 entries, mm_hashes has 1",
    ),
    "metadata of another modality": (
        images(DENSE, mm_metadata={"audio": [None]}),
        "features.mm_metadata",
        "has the modalities ['audio']",
    ),
    "too many metadata": (
        images(DENSE, mm_metadata={"image": [None, None]}),
        "features.mm_metadata.image",
        "has 2 entries, mm_hashes has 1",
    ),
    "negative offset": (
        images(PlaceholderRange(-1, 2)),
        "features.mm_placeholders.image[0]",
        "offset must be at least 0 and length at least 1, got offset -1 and length 2",
    ),
    "no length": (
        images(DENSE, PlaceholderRange(5, 0)),
        "features.mm_placeholders.image[1]",
        "got offset 5 and length 0",
    ),
    "beyond the prompt": (
        images(PlaceholderRange(7, 4)),
        "features.mm_placeholders.image[0]",
        "4 positions from 7 on do not fit a prompt of 10 token ids",
    ),
    "sum of more digits than Python writes": (
        images(PlaceholderRange(10**4300 - 1, 10**4300 - 1)),
        "features.mm_placeholders.image[0]",
        "999",
    ),
    "not in prompt order": (
        images(PlaceholderRange(5, 1), PlaceholderRange(1, 1)),
        "features.mm_placeholders.image[1]",
        "begins before",
    ),
    "ranges that overlap": (
        images(DENSE, PlaceholderRange(4, 2)),
        "features.mm_placeholders",
        "two items embed into prompt position 4",
    ),
    "masks that overlap": (
        video_and_audio(
            PlaceholderRange(1, 4, [True, False, True, True]),
            PlaceholderRange(2, 2, [True, True]),
        ),
        "features.mm_placeholders",
        "two items embed into prompt position 3",
    ),
    "embeddings beside features": (
        text(features=IMAGE.features, prompt_embeds=embeds((0, 1)).prompt_embeds),
        "prompt_embeds",
        "exclude each other",
    ),
    "empty prompt of the encoder": (
        encoded(DENSE, encoder_token_ids=[]),
        "encoder_token_ids",
        "must not be empty",
    ),
    "negative token of the encoder's": (
        encoded(DENSE, encoder_token_ids=[0, -1]),
        "encoder_token_ids[1]",
        "",
    ),
    "prompt of the encoder without an item": (
        text(encoder_token_ids=[0]),
        "features",
        "features must hold it",
    ),
    "beyond the encoder's prompt": (
        encoded(PlaceholderRange(0, 21)),
        "features.mm_placeholders.image[0]",
        "21 positions from 0 on do not fit a prompt of 20",
    ),
    "two items for the encoder": (
        encoded(PlaceholderRange(0, 1), PlaceholderRange(1, 1)),
        "features.mm_placeholders.image",
        "takes one item",
    ),
    "an item behind the encoder's first token": (
        encoded(PlaceholderRange(1, 1)),
        "features.mm_placeholders.image",
        "from its first token on",
    ),
    "no embeddings": (embeds(), "prompt_embeds", "0 spans and 0 tensors"),
    "fewer embeddings than spans": (
        embeds((0, 1), (1, 1), tensors=[rows(1)]),
        "prompt_embeds",
        "2 spans and 1 tensors",
    ),
    "empty span": (embeds((0, 0)), "prompt_embeds.spans[0]", "(0, 0) must lie in"),
    "span before the prompt": (embeds((-1, 2)), "prompt_embeds.spans[0]", "(-1, 2) must lie in"),
    "span beyond the prompt": (embeds((9, 2)), "prompt_embeds.spans[0]", "the prompt's 10"),
    "spans that overlap": (
        embeds((0, 3), (2, 1)),
        "prompt_embeds.spans[1]",
        "after the span in front of it",
    ),
    "spans not in order": (embeds((5, 1), (0, 1)), "prompt_embeds.spans[1]", "(0, 1) must lie"),
    "rows that do not fill the span": (
        embeds((0, 3), tensors=[rows(2)]),
        "prompt_embeds.tensors[0]",
        "has shape [2, 2], its span needs (3, hidden_size)",
    ),
    "rows without hidden size": (
        embeds((0, 2), tensors=[TensorRef("float16", (2,), bytes(4))]),
        "prompt_embeds.tensors[0]",
        "has shape [2], its span",
    ),
}


@encodings
@pytest.mark.parametrize("request_", KEPT.values(), ids=KEPT)
def test_requests_that_keep_the_rules_are_read(encoding: str, request_: GenerateRequest) -> None:
    assert DECODERS[encoding](ENCODERS[encoding](request_)) == request_


@encodings
@pytest.mark.parametrize(("request_", "param", "fragment"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named(
    encoding: str, request_: GenerateRequest, param: str, fragment: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[encoding](ENCODERS[encoding](request_))
    assert caught.value.status == 400
    assert caught.value.param == param
    assert fragment in caught.value.message


def test_a_token_id_beyond_int32_is_named() -> None:
    with pytest.raises(InvalidRequest, match="<= 2147483647") as caught:
        DECODERS["json"](ENCODERS["json"](text(token_ids=[1, 2**31])))
    assert caught.value.param == "token_ids[1]"


def patch(*path: str | int, value: Any) -> tuple[tuple[str | int, ...], Any]:
    return path, value


MISTYPED = {
    "unknown member": (patch("x", value=1), None, "unknown field `x`"),
    "no request id": (patch("request_id", value=None), "request_id", "Expected `str`"),
    "tokens as text": (patch("token_ids", value="1 2 3"), "token_ids", "Expected `array`"),
    "text among tokens": (patch("token_ids", value=[1, "2"]), "token_ids[1]", "Expected `int`"),
    "fraction among tokens": (patch("token_ids", value=[0, 1.0]), "token_ids[1]", "got `float`"),
    "boolean among tokens": (patch("token_ids", value=[True]), "token_ids[0]", "got `bool`"),
    "sampling parameters as a list": (
        patch("sampling_params", value=[]),
        "sampling_params",
        "Expected `object`",
    ),
    "content parts": (
        patch("content_parts", value=[{"type": "text"}]),
        "content_parts",
        "Expected `null`",
    ),
    "priority as text": (patch("priority", value="1"), "priority", "Expected `int`"),
    "version as a number": (patch("protocol_version", value=1), "protocol_version", "`str | null`"),
    "features as a list": (patch("features", value=[]), "features", "Expected `object | null`"),
    "unknown member of features": (
        patch("features", "mm_items", value={}),
        "features",
        "unknown field `mm_items`",
    ),
    "hash as a number": (
        patch("features", "mm_hashes", "image", 0, value=7),
        "features.mm_hashes[...][0]",
        "Expected `str`",
    ),
    "placeholder as a list": (
        patch("features", "mm_placeholders", "image", 0, value=[1, 4]),
        "features.mm_placeholders[...][0]",
        "Expected `object`",
    ),
    "unknown member of a placeholder": (
        patch("features", "mm_placeholders", "image", 0, "is_embeds", value=[True]),
        "features.mm_placeholders[...][0]",
        "unknown field `is_embeds`",
    ),
    "offset as a fraction": (
        patch("features", "mm_placeholders", "image", 0, "offset", value=1.5),
        "features.mm_placeholders[...][0].offset",
        "Expected `int`",
    ),
    "offset as a boolean": (
        patch("features", "mm_placeholders", "image", 0, "offset", value=True),
        "features.mm_placeholders[...][0].offset",
        "Expected `int`",
    ),
    "item as a number": (
        patch("features", "kwargs_data", "image", 0, value=7),
        "features.kwargs_data",
        "an item is a",
    ),
    "unknown member of a span": (
        patch("prompt_embeds", value={"spans": [{"offset": 0, "length": 1, "x": 0}]}),
        "prompt_embeds.spans[0]",
        "unknown field `x`",
    ),
    "lora without a path": (
        patch("lora", value={"name": "a", "int_id": 1}),
        "lora",
        "missing required field `path`",
    ),
    "unknown member of the reasoning parser's": (
        patch("reasoning_parser_kwargs", value={"model": "x"}),
        "reasoning_parser_kwargs",
        "unknown field `model`",
    ),
}


@encodings
@pytest.mark.parametrize(("change", "param", "fragment"), MISTYPED.values(), ids=MISTYPED)
def test_a_member_of_another_type_is_named(
    encoding: str, change: tuple[tuple[str | int, ...], Any], param: str | None, fragment: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[encoding](patched(IMAGE, encoding, *change))
    assert caught.value.status == 400
    assert caught.value.param == param
    assert fragment in caught.value.message


def patched(
    request: GenerateRequest, encoding: str, path: tuple[str | int, ...], value: Any
) -> bytes:
    document = json_of(request, encoding)
    member = document
    for key in path[:-1]:
        member = member[key]
    member[path[-1]] = value
    return with_json(request, encoding, document)


@encodings
@pytest.mark.parametrize(
    "change",
    [
        patch("new_member", value=1),
        patch("features", value="of another kind"),
        patch("features", "kwargs_data", "image", 0, value="of another kind"),
    ],
    ids=str,
)
def test_a_newer_version_is_refused_as_such_whatever_it_added(
    encoding: str, change: tuple[tuple[str | int, ...], Any]
) -> None:
    newer = replace(IMAGE, protocol_version="2.0")
    with pytest.raises(UnsupportedVersion, match=r"'2\.0' is not spoken here") as caught:
        DECODERS[encoding](patched(newer, encoding, *change))
    assert caught.value.param == "protocol_version"


BATCHED = ["batched", {}]
DEEPEST = [[[[[[[1]]]]]]]

BAD_ELEMENTS = {
    "no element": ({}, "features.kwargs_data", "non-empty map"),
    "a list": ([], "features.kwargs_data", "non-empty map"),
    "name that is no identifier": (
        {"a/0": {"data": 1, "field": BATCHED}},
        "features.kwargs_data",
        "identifiers",
    ),
    "empty name": ({"": {"data": 1, "field": BATCHED}}, "features.kwargs_data", "identifiers"),
    "element as a number": ({"a": 1}, "features.kwargs_data.a", "has data and field"),
    "no field": ({"a": {"data": 1}}, "features.kwargs_data.a", "has data and field"),
    "no data": ({"a": {"field": BATCHED}}, "features.kwargs_data.a", "has data and field"),
    "unknown member": (
        {"a": {"data": 1, "field": BATCHED, "key": "a"}},
        "features.kwargs_data.a",
        "has data and field",
    ),
    "field as text": (
        {"a": {"data": 1, "field": "batched"}},
        "features.kwargs_data.a",
        "its kind and its arguments",
    ),
    "unknown field kind": (
        {"a": {"data": 1, "field": ["flat_from_sizes", {}]}},
        "features.kwargs_data.a",
        "'flat_from_sizes' is not one of batched, flat, shared",
    ),
    "unknown argument": (
        {"a": {"data": 1, "field": ["batched", {"modality": "image"}]}},
        "features.kwargs_data.a",
        "unknown field `modality`",
    ),
    "shared without batch size": (
        {"a": {"data": 1, "field": ["shared", {}]}},
        "features.kwargs_data.a",
        "missing required field `batch_size`",
    ),
    "batch size beyond int64": (
        {"a": {"data": 1, "field": ["shared", {"batch_size": 2**63}]}},
        "features.kwargs_data.a",
        "<= 9223372036854775807",
    ),
    "slice of two numbers": (
        {"a": {"data": 1, "field": ["flat", {"slices": [[0, 1]]}]}},
        "features.kwargs_data.a",
        "start, stop and step",
    ),
    "slice of slices and numbers": (
        {"a": {"data": 1, "field": ["flat", {"slices": [[[0, 1, None], 1]], "dim": 1}]}},
        "features.kwargs_data.a",
        "start, stop and step",
    ),
    "text as data": (
        {"a": {"data": [{"x": 1}], "field": BATCHED}},
        "features.kwargs_data.a[0]",
        "expected a tensor, a finite number or a list",
    ),
    "boolean as data": (
        {"a": {"data": True, "field": BATCHED}},
        "features.kwargs_data.a",
        "expected a tensor, a finite number or a list",
    ),
    "null among data": (
        {"a": {"data": [1, None], "field": BATCHED}},
        "features.kwargs_data.a[1]",
        "expected a tensor, a finite number or a list",
    ),
    "number that is none": (
        {"a": {"data": [float("nan")], "field": BATCHED}},
        "features.kwargs_data.a[0]",
        "expected a tensor, a finite number or a list",
    ),
    "infinite number": (
        {"a": {"data": [0.5, float("inf")], "field": BATCHED}},
        "features.kwargs_data.a[1]",
        "expected a tensor, a finite number or a list",
    ),
    "number beyond int64": (
        {"a": {"data": 2**63, "field": BATCHED}},
        "features.kwargs_data.a",
        "expected a tensor, a finite number or a list",
    ),
    "nested too deeply": (
        {"a": {"data": [DEEPEST], "field": BATCHED}},
        "features.kwargs_data.a[0][0][0][0][0][0][0][0]",
        "nested too deeply",
    ),
}


def element_body(
    encoding: str, elements: Any, tensors: dict[str, TensorRef] | None = None
) -> bytes:
    document = {
        "request_id": "r",
        "sampling_params": {},
        "token_ids": [1, 2, 3] if encoding == "json" else [],
        "features": {
            "mm_hashes": {"image": ["h"]},
            "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
            "kwargs_data": {"image": [as_item(elements) if encoding == "json" else elements]},
        },
    }
    return msgspec.json.encode(document) if encoding == "json" else container(document, tensors)


def as_item(elements: Any) -> str:
    return binascii.b2a_base64(msgspec.msgpack.encode(elements), newline=False).decode()


@encodings
@pytest.mark.parametrize(("elements", "param", "fragment"), BAD_ELEMENTS.values(), ids=BAD_ELEMENTS)
def test_a_bad_element_is_named(encoding: str, elements: Any, param: str, fragment: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[encoding](element_body(encoding, elements))
    assert caught.value.param == param
    assert fragment in caught.value.message


@encodings
def test_the_deepest_nesting_is_read(encoding: str) -> None:
    elements = {"a": {"data": DEEPEST, "field": BATCHED}}
    features = DECODERS[encoding](element_body(encoding, elements)).features
    assert features is not None
    assert features.kwargs_data is not None
    (item,) = features.kwargs_data["image"]
    assert item is not None
    assert item.elements["a"].data == DEEPEST


RAW = msgspec.msgpack.Ext(3, b"\1\1\0\1")

BAD_JSON_TENSORS = {
    "dtype outside the list": (["complex64", [1], RAW], "dtype 'complex64' is not one of bool"),
    "numpy's dtype name": (["<f4", [1], RAW], "dtype '<f4' is not one of bool"),
    "safetensors' dtype name": (["F32", [1], RAW], "dtype 'F32' is not one of bool"),
    "fewer bytes than the shape takes": (["float32", [2], RAW], "float32[2] takes 8 bytes, got 4"),
    "more bytes than the shape takes": (["int8", [3], RAW], "int8[3] takes 3 bytes, got 4"),
    "shape as a number": (["uint8", 4, RAW], "non-negative integers"),
    "negative dimension": (["uint8", [-2, -2], RAW], "non-negative integers"),
    "too many dimensions": (["uint8", [1] * 16 + [4], RAW], "at most 16"),
    "strides beyond int64": (["uint8", [0, 2**62, 2**62], RAW], "too large a shape"),
    "bytes beside the message": (["uint8", [4], 1], "must be inline"),
    "pickled bytes": (["uint8", [4], msgspec.msgpack.Ext(1, b"abcd")], "must be inline"),
    "bytes that are no extension": (["uint8", [4], b"abcd"], "must be inline"),
    "booleans of other bytes": (
        ["bool", [4], msgspec.msgpack.Ext(3, b"\1\2\0\1")],
        "bytes of a bool tensor are 0 or 1",
    ),
}


@pytest.mark.parametrize(("tensor", "fragment"), BAD_JSON_TENSORS.values(), ids=BAD_JSON_TENSORS)
def test_a_bad_tensor_of_an_item_is_named(tensor: Any, fragment: str) -> None:
    elements = {"a": {"data": [tensor], "field": BATCHED}}
    with pytest.raises(InvalidRequest) as caught:
        DECODERS["json"](element_body("json", elements))
    assert caught.value.param == "features.kwargs_data.a[0]"
    assert fragment in caught.value.message


def test_a_bool_tensor_of_other_bytes_is_named_in_a_container() -> None:
    name = "image/0/a"
    body = element_body(
        "binary",
        {"a": {"data": name, "field": BATCHED}},
        {name: TensorRef("bool", (2,), b"\1\2")},
    )
    with pytest.raises(InvalidRequest, match="bytes of a bool tensor are 0 or 1") as caught:
        DECODERS["binary"](body)
    assert caught.value.param == name


BAD_EMBEDDINGS = {
    "text": ("AAAA", "has dtype, shape and data"),
    "no shape": ({"dtype": "float16", "data": "AAAAAA=="}, "has dtype, shape and data"),
    "data that is no base64": (
        {"dtype": "float16", "shape": [1, 2], "data": "#"},
        "data is not base64",
    ),
    "data as a list": (
        {"dtype": "float16", "shape": [1, 2], "data": [0, 0]},
        "data is not base64",
    ),
    "bytes that do not fill the shape": (
        {"dtype": "float16", "shape": [1, 3], "data": "AAAAAA=="},
        "takes 6 bytes, got 4",
    ),
}


@pytest.mark.parametrize(("tensor", "fragment"), BAD_EMBEDDINGS.values(), ids=BAD_EMBEDDINGS)
def test_a_bad_embedding_is_named_in_json(tensor: Any, fragment: str) -> None:
    change = patch("prompt_embeds", "tensors", 0, value=tensor)
    with pytest.raises(InvalidRequest) as caught:
        DECODERS["json"](patched(embeds((0, 1)), "json", *change))
    assert caught.value.param == "prompt_embeds.tensors"
    assert fragment in caught.value.message


PACKED_ITEM = encode_item(ITEM)


@pytest.mark.parametrize(
    "item", ["", "#", "AAA", "é", "wQ==", PACKED_ITEM[:-4], f"{PACKED_ITEM}\n", f"#{PACKED_ITEM}"]
)
def test_an_item_that_is_no_base64_of_msgpack_is_refused(item: str) -> None:
    change = patch("features", "kwargs_data", "image", 0, value=item)
    with pytest.raises(InvalidRequest, match="base64 of a msgpack map") as caught:
        DECODERS["json"](patched(IMAGE, "json", *change))
    assert caught.value.param == "features.kwargs_data"


def test_negative_ids_are_named_in_a_container() -> None:
    ids = TensorRef("int32", (3,), struct.pack("<3i", 5, -7, -2))
    document = {"request_id": "r", "token_ids": [], "sampling_params": {}}
    with pytest.raises(InvalidRequest, match="is -7") as caught:
        DECODERS["binary"](container(document, {"token_ids": ids}))
    assert caught.value.param == "token_ids[1]"
