"""`is_embed`: which positions of a placeholder take a row of the encoder's output."""

from typing import Any

import msgspec
import pytest

from shared_protocol.errors import InvalidRequest
from shared_protocol.placeholders import PlaceholderRange
from shared_protocol.request import Features, GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.shared_protocol.bodies import (
    DECODERS,
    ENCODERS,
    container,
    document_of,
    header_of,
)

SPARSE = PlaceholderRange(1, 4, [True, False, True, True])
ALL_TRUE = PlaceholderRange(1, 4, [True] * 4)
DENSE = PlaceholderRange(1, 4)
MASK_NAME = "placeholder/image/0/is_embed"
encodings = pytest.mark.parametrize("encoding", ENCODERS)


def image_request(placeholder: PlaceholderRange) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        token_ids=[1, 2, 3, 4, 5, 6],
        sampling_params={},
        features=Features({"image": ["h"]}, {"image": [placeholder]}),
    )


def decoded(encoding: str, body: bytes) -> PlaceholderRange:
    features = DECODERS[encoding](body).features
    assert features is not None
    (placeholder,) = features.mm_placeholders["image"]
    return placeholder


def test_a_sparse_placeholder_in_json() -> None:
    expected = (
        b'"mm_placeholders":{"image":[{"offset":1,"length":4,"is_embed":[true,false,true,true]}]}'
    )
    assert expected in ENCODERS["json"](image_request(SPARSE))


class PlainRange(msgspec.Struct):
    """A placeholder as it was without masks."""

    offset: int
    length: int


@encodings
def test_a_dense_request_is_what_it_would_be_without_the_field(encoding: str) -> None:
    body = ENCODERS[encoding](image_request(DENSE))
    assert b"is_embed" not in body
    if encoding == "json":
        plain = msgspec.json.encode({"image": [PlainRange(1, 4)]})
        assert b'"mm_placeholders":' + plain + b"," in body
    else:
        assert document_of(body)["features"]["mm_placeholders"] == {
            "image": [{"offset": 1, "length": 4}]
        }
        assert header_of(body).keys() == {"__metadata__", "token_ids"}


@encodings
@pytest.mark.parametrize("placeholder", [SPARSE, ALL_TRUE, DENSE], ids=["sparse", "all", "dense"])
def test_masks_survive_as_they_are(encoding: str, placeholder: PlaceholderRange) -> None:
    # An all-True mask must not become a dense placeholder: vLLM's runner treats them differently.
    read = decoded(encoding, ENCODERS[encoding](image_request(placeholder)))
    assert read.is_embed == placeholder.is_embed
    assert read.is_embed is None or all(type(entry) is bool for entry in read.is_embed)


def test_null_is_dense() -> None:
    assert decoded("json", json_with_mask(None)).is_embed is None


WRONG_LENGTHS: dict[str, list[bool]] = {
    "no entry": [],
    "one less": [True] * 3,
    "one more": [True] * 5,
    "without any true one": [False] * 7,
}


@encodings
@pytest.mark.parametrize("mask", WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
def test_a_mask_of_another_length_is_told_both_lengths(encoding: str, mask: list[bool]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[encoding](ENCODERS[encoding](image_request(PlaceholderRange(1, 4, mask))))
    assert caught.value.status == 400
    assert caught.value.param == "features.mm_placeholders.image[0].is_embed"
    assert f"has {len(mask)} entries, it must have 4" in caught.value.message


@encodings
def test_a_mask_without_any_true_entry_is_refused(encoding: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[encoding](ENCODERS[encoding](image_request(PlaceholderRange(1, 4, [False] * 4))))
    assert caught.value.status == 400
    assert caught.value.param == "features.mm_placeholders.image[0].is_embed"
    assert "has no true entry among its 4" in caught.value.message


def request_json(mask: Any) -> dict[str, Any]:
    placeholder = {"offset": 1, "length": 4, "is_embed": mask}
    return {
        "request_id": "r",
        "token_ids": [1, 2, 3, 4, 5, 6],
        "sampling_params": {},
        "features": {"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [placeholder]}},
    }


def json_with_mask(mask: Any) -> bytes:
    return msgspec.json.encode(request_json(mask))


def container_with_mask(mask: Any, tensors: dict[str, TensorRef] | None = None) -> bytes:
    ids = TensorRef("int32", (6,), bytes(24))
    return container(request_json(mask) | {"token_ids": []}, {"token_ids": ids} | (tensors or {}))


NO_BOOLEANS: dict[str, tuple[Any, str]] = {
    "a boolean": (True, ".is_embed"),
    "a number": (4, ".is_embed"),
    "text": ("1011", ".is_embed"),
    "a map": ({"0": True}, ".is_embed"),
    "zeros and ones": ([1, 0, 1, 1], ".is_embed[0]"),
    "one integer": ([True, False, True, 1], ".is_embed[3]"),
    "fractions": ([1.0, 0.0, 1.0, 1.0], ".is_embed[0]"),
    "words": (["true", "false", "true", "true"], ".is_embed[0]"),
    "null entries": ([True, None, True, True], ".is_embed[1]"),
    "nested": ([[True, False, True, True]], ".is_embed[0]"),
}


@pytest.mark.parametrize("body", [json_with_mask, container_with_mask], ids=["json", "binary"])
@pytest.mark.parametrize(("mask", "where"), NO_BOOLEANS.values(), ids=NO_BOOLEANS)
def test_a_mask_that_is_no_list_of_booleans_is_refused(body: Any, mask: Any, where: str) -> None:
    encoding = "json" if body is json_with_mask else "binary"
    with pytest.raises(InvalidRequest) as caught:
        DECODERS[encoding](body(mask))
    assert caught.value.status == 400
    assert caught.value.param == "features.mm_placeholders[...][0]" + where
    assert "Expected `" in caught.value.message


BAD_MASK_TENSORS = {
    "zeros and ones of another dtype": (TensorRef("uint8", (4,), b"\1\0\1\1"), "BOOL tensor"),
    "two dimensions": (TensorRef("bool", (2, 2), b"\1\0\1\1"), "BOOL tensor of one dimension"),
    "a scalar": (TensorRef("bool", (), b"\1"), "BOOL tensor of one dimension"),
    "other bytes": (TensorRef("bool", (4,), b"\1\0\2\1"), "are 0 or 1"),
}


@pytest.mark.parametrize(("mask", "fragment"), BAD_MASK_TENSORS.values(), ids=BAD_MASK_TENSORS)
def test_a_mask_tensor_of_another_kind_is_refused(mask: TensorRef, fragment: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS["binary"](container_with_mask(None, {MASK_NAME: mask}))
    assert caught.value.status == 400
    assert caught.value.param in {"features.mm_placeholders", MASK_NAME}
    assert fragment in caught.value.message


def test_a_mask_in_the_json_and_as_a_tensor_is_refused() -> None:
    mask = TensorRef("bool", (4,), b"\1\1\0\1")
    with pytest.raises(InvalidRequest, match="in the JSON and a tensor as well"):
        DECODERS["binary"](container_with_mask([True, False, True, True], {MASK_NAME: mask}))


@pytest.mark.parametrize(
    ("mask", "runs"),
    [
        (None, [(1, 5)]),
        ([True, True, True, True], [(1, 5)]),
        ([True, False, True, True], [(1, 2), (3, 5)]),
        ([False, True, False, False], [(2, 3)]),
    ],
)
def test_runs_of_embedded_positions(mask: list[bool] | None, runs: list[tuple[int, int]]) -> None:
    placeholder = PlaceholderRange(1, 4, mask)
    assert list(placeholder.embedded_runs()) == runs
    assert placeholder.num_embeds == sum(end - start for start, end in runs)
