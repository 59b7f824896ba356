"""Whatever bytes arrive, a decoder answers with a request or with `InvalidRequest`."""

import binascii
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_protocol.errors import MAX_MESSAGE_LENGTH, InvalidRequest
from shared_protocol.request import GenerateRequest
from shared_protocol.tensors import TensorRef
from tests.shared_protocol import strategies
from tests.shared_protocol.bodies import (
    DECODERS,
    ENCODERS,
    container,
    frame_header,
    json_of,
    raw_container,
    with_json,
)

TEXT = {"request_id": "r", "token_ids": [1, 2, 3], "sampling_params": {}}
TEXT_IN_CONTAINER = TEXT | {"token_ids": []}
DEEP = b"[" * 100_000 + b"]" * 100_000
encodings = pytest.mark.parametrize("encoding", ENCODERS)


def decode(encoding: str, body: bytes) -> None:
    """Decode, and if that is possible, encode again: a request that can is a sound one."""
    try:
        request = DECODERS[encoding](body)
    except InvalidRequest as error:
        msgspec.json.encode(error.body())
        return
    for encode in ENCODERS.values():
        encode(request)


@encodings
@given(body=st.binary(max_size=64))
def test_random_bytes(encoding: str, body: bytes) -> None:
    decode(encoding, body)


@given(body=st.binary(max_size=64), header=st.binary(max_size=64))
def test_random_headers(body: bytes, header: bytes) -> None:
    decode("binary", frame_header(header, body))


@encodings
@given(request_=strategies.requests(), data=st.data())
def test_truncated_bodies(encoding: str, request_: GenerateRequest, data: st.DataObject) -> None:
    body = ENCODERS[encoding](request_)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(InvalidRequest):
        DECODERS[encoding](body[:cut])


@encodings
@given(request_=strategies.requests(), data=st.data())
def test_flipped_bits(encoding: str, request_: GenerateRequest, data: st.DataObject) -> None:
    body = bytearray(ENCODERS[encoding](request_))
    positions = st.integers(0, 8 * len(body) - 1)
    for position in data.draw(st.lists(positions, min_size=1, max_size=3)):
        body[position // 8] ^= 1 << position % 8
    decode(encoding, bytes(body))


JSON_VALUES = st.one_of(
    st.sampled_from([None, True, -1, 2**31, 2**64 - 1, 1.5, "", "__metadata__", [], {}]),
    strategies.documents,
)


@encodings
@given(request_=strategies.requests(), data=st.data())
def test_a_replaced_member(encoding: str, request_: GenerateRequest, data: st.DataObject) -> None:
    document = json_of(request_, encoding)
    replace_any(document, data)
    decode(encoding, with_json(request_, encoding, document))


@given(
    elements=st.dictionaries(
        strategies.names,
        st.fixed_dictionaries(
            {
                "data": st.just(["uint8", [2], msgspec.msgpack.Ext(3, b"ab")]),
                "field": st.sampled_from(
                    [
                        ["batched", {"keep_on_cpu": False}],
                        ["flat", {"slices": [[0, 1, None]], "dim": 0}],
                        ["shared", {"batch_size": 1}],
                    ]
                ),
            }
        ),
        min_size=1,
        max_size=2,
    ),
    data=st.data(),
)
def test_a_replaced_member_of_an_item(elements: dict[str, Any], data: st.DataObject) -> None:
    # A copy, as strategies hand out the same lists again.
    elements = msgspec.msgpack.decode(msgspec.msgpack.encode(elements))
    replace_any(elements, data)
    decode("json", image_body(elements))


def replace_any(document: Any, data: st.DataObject) -> None:
    """Replace a member anywhere in `document`."""
    holder, key = data.draw(st.sampled_from(list(places(document))))
    holder[key] = data.draw(JSON_VALUES)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every list and map in `document` with each of its indices or keys."""
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from places(document[key])


def image_body(elements: Any) -> bytes:
    item = binascii.b2a_base64(msgspec.msgpack.encode(elements), newline=False).decode()
    return msgspec.json.encode(TEXT | {"features": image_features(item)})


def image_features(item: Any) -> dict[str, Any]:
    return {
        "mm_hashes": {"image": ["h"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
        "kwargs_data": {"image": [item]},
    }


def json_with(value: bytes) -> bytes:
    return b'{"request_id":"r","token_ids":[1],"sampling_params":{"x":' + value + b"}}"


BAD_JSON = {
    "empty": b"",
    "not JSON": b"token_ids=1",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "two documents": b"{}{}",
    "deeply nested": json_with(DEEP),
    "deeply nested in a list": json_with(b"[" + DEEP + b"]"),
    "infinite number": json_with(b"1e400"),
    "NaN": json_with(b"NaN"),
    "more digits than Python converts": json_with(b"1" * 5000),
    "raw surrogate": json_with(b'"\xed\xa0\x80"'),
    "lone high surrogate": json_with(rb'"\ud800"'),
    "lone low surrogate": json_with(rb'"\udc00"'),
    "surrogate before a letter": json_with(rb'"\ud800\u0041"'),
    "not UTF-8": json_with(b'"\xff\xfe"'),
    "a key that is not UTF-8": b'{"\xff":1}',
    "overlong UTF-8": json_with(b'"\xc0\xaf"'),
    "UTF-16": '{"request_id":"r"}'.encode("utf-16"),
}


@pytest.mark.parametrize("document", BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_refused_as_a_body(document: bytes) -> None:
    with pytest.raises(InvalidRequest):
        DECODERS["json"](document)


@pytest.mark.parametrize("document", BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_refused_as_a_header(document: bytes) -> None:
    with pytest.raises(InvalidRequest):
        DECODERS["binary"](frame_header(document))


@pytest.mark.parametrize("document", BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_refused_in_a_header(document: bytes) -> None:
    text = document.decode(errors="surrogateescape")
    header = (b'{"__metadata__":{"request":%s}}' % quoted(text)).replace(b"token_ids", b"tokens")
    with pytest.raises(InvalidRequest):
        DECODERS["binary"](frame_header(header))


def quoted(text: str) -> bytes:
    """A JSON string, with bytes that were not UTF-8 as they were."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\\u0000")
    return b'"%s"' % escaped.encode(errors="surrogateescape")


@encodings
def test_of_duplicate_keys_the_last_counts(encoding: str) -> None:
    ids = b"[1]" if encoding == "json" else b"[]"
    document = (
        b'{"request_id":"a","request_id":"b","token_ids":%s,"sampling_params":{"n":1,"n":2}}' % ids
    )
    if encoding == "json":
        request = DECODERS["json"](document)
    else:
        request = DECODERS["binary"](container(msgspec.Raw(document)))
    assert request.request_id == "b"
    assert request.sampling_params == {"n": 2}


def entry(begin: Any, end: Any, **members: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [4], "data_offsets": [begin, end]} | members


def tensors_of(**entries: Any) -> bytes:
    """A container with 4 bytes for `token_ids` and 8 more for `entries`."""
    ids = {"token_ids": entry(0, 4, dtype="I32", shape=[1])}
    return raw_container(TEXT_IN_CONTAINER, ids | entries, bytes(12))


BAD_CONTAINERS = {
    "shorter than a length": (b"\x01\x00", "shorter than"),
    "header longer than the body": (struct.pack("<Q", 3) + b"{}", "is said to have 3 bytes"),
    "header of 2**64 - 1 bytes": (struct.pack("<Q", 2**64 - 1) + b"{}", "is said to have"),
    "header of no bytes": (struct.pack("<Q", 0), "is not JSON"),
    "header without metadata": (frame_header(b"{}"), "no __metadata__.request"),
    "metadata is a list": (frame_header(b'{"__metadata__":[]}'), "no __metadata__.request"),
    "metadata is text": (frame_header(b'{"__metadata__":"request"}'), "no __metadata__.request"),
    "metadata is null": (frame_header(b'{"__metadata__":null}'), "no __metadata__.request"),
    "request is no text": (
        frame_header(b'{"__metadata__":{"request":{}}}'),
        "no __metadata__.request",
    ),
    "entry is a number": (tensors_of(a=1), "dtype, shape and data_offsets"),
    "entry without dtype": (tensors_of(a={"shape": [], "data_offsets": [0, 0]}), "a: a tensor has"),
    "entry with another member": (tensors_of(a=entry(4, 8, strides=[1])), "a: a tensor has"),
    "negative offset": (tensors_of(a=entry(-4, 0)), "a: data_offsets lie outside"),
    "offsets turned round": (tensors_of(a=entry(8, 4)), "a: data_offsets lie outside"),
    "offset behind the body": (tensors_of(a=entry(10, 14)), "a: data_offsets lie outside"),
    "offset of 2**64": (tensors_of(a=entry(2**64, 2**64 + 4)), "a: data_offsets lie outside"),
    "offset that is no integer": (tensors_of(a=entry(4.0, 8)), "a: data_offsets lie outside"),
    "offset that is a boolean": (tensors_of(a=entry(False, 4)), "a: data_offsets lie outside"),
    "three offsets": (tensors_of(a=entry(0, 0, data_offsets=[4, 6, 8])), "a: data_offsets lie"),
    "overlapping tensors": (tensors_of(a=entry(4, 8), b=entry(6, 10)), "overlap or leave a gap"),
    "the same bytes twice": (tensors_of(a=entry(4, 8), b=entry(4, 8)), "overlap or leave a gap"),
    "gap": (tensors_of(a=entry(4, 8), b=entry(9, 12, shape=[3])), "overlap or leave a gap"),
    "bytes behind the last tensor": (tensors_of(a=entry(4, 8)), "4 bytes follow the last tensor"),
    "unknown dtype": (tensors_of(a=entry(4, 12, dtype="C64", shape=[1])), "dtype 'C64' is not"),
    "torch's dtype name": (tensors_of(a=entry(4, 12, dtype="complex64", shape=[1])), "dtype"),
    "dtype that is no text": (tensors_of(a=entry(4, 8, dtype=[["U8"]])), "dtype of type list"),
    "more bytes than the shape takes": (tensors_of(a=entry(4, 12)), "takes 4 bytes, got 8"),
    "shape is a number": (tensors_of(a=entry(4, 8, shape=4)), "non-negative integers"),
    "negative dimension": (tensors_of(a=entry(4, 8, shape=[-2, -2])), "non-negative integers"),
    "fractional dimension": (tensors_of(a=entry(4, 8, shape=[4.0])), "non-negative integers"),
    "boolean dimension": (tensors_of(a=entry(4, 8, shape=[4, True])), "non-negative integers"),
    "too many dimensions": (tensors_of(a=entry(4, 5, shape=[1] * 17)), "at most 16"),
    "product of more digits than Python writes": (
        tensors_of(a=entry(4, 8, shape=[10**4000, 10**4000])),
        "too large a shape",
    ),
    "empty, with strides beyond int64": (
        tensors_of(a=entry(4, 4, shape=[0, 2**62, 2**62])),
        "too large a shape",
    ),
    "a tensor that nothing names": (
        container(TEXT_IN_CONTAINER, {"image/0/pixels": TensorRef("uint8", (1,), b"a")}),
        "Tensors that nothing names: image/0/pixels",
    ),
    "no token_ids": (raw_container(TEXT_IN_CONTAINER, {}, b""), "no tensor 'token_ids'"),
    "token_ids of another dtype": (
        container(TEXT_IN_CONTAINER, {"token_ids": TensorRef("int64", (1,), bytes(8))}),
        "I32 tensor of one dimension",
    ),
    "token_ids of two dimensions": (
        container(TEXT_IN_CONTAINER, {"token_ids": TensorRef("int32", (1, 1), bytes(4))}),
        "I32 tensor of one dimension",
    ),
    "token_ids twice": (container(TEXT), "in the JSON and a tensor as well"),
    "no encoder_token_ids": (
        container(TEXT_IN_CONTAINER | {"encoder_token_ids": []}),
        "no tensor 'encoder_token_ids'",
    ),
    "an element that names no tensor": (
        container(
            TEXT_IN_CONTAINER
            | {"features": image_features({"a": {"data": "x", "field": ["batched", {}]}})}
        ),
        "no tensor 'x'",
    ),
    "prompt_embeds that names no tensor": (
        container(
            TEXT_IN_CONTAINER
            | {"prompt_embeds": {"spans": [{"offset": 0, "length": 1}], "tensors": ["x"]}}
        ),
        "no tensor 'x'",
    ),
    "prompt_embeds that is no name": (
        container(
            TEXT_IN_CONTAINER
            | {"prompt_embeds": {"spans": [{"offset": 0, "length": 1}], "tensors": [1]}}
        ),
        "named by a string",
    ),
}


@pytest.mark.parametrize(("body", "fragment"), BAD_CONTAINERS.values(), ids=BAD_CONTAINERS)
def test_bad_containers_are_refused(body: bytes, fragment: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DECODERS["binary"](body)
    assert fragment in caught.value.message


def test_a_tensor_named_twice_in_the_header_is_refused() -> None:
    entries = (
        b'"token_ids":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},'
        b'"token_ids":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}'
    )
    document = b'{\\"request_id\\":\\"r\\",\\"token_ids\\":[],\\"sampling_params\\":{}}'
    header = b'{"__metadata__":{"request":"' + document + b'"},' + entries + b"}"
    with pytest.raises(InvalidRequest, match="overlap or leave a gap"):
        DECODERS["binary"](frame_header(header, bytes(8)))


# Up to where Python itself gives up, which depends on who calls.
DEPTHS = [*range(1, 12), *range(150, 1050, 7)]


@encodings
@pytest.mark.parametrize("member", ["sampling_params", "token_ids", "features", "unknown"])
def test_every_depth_of_a_member_is_read_or_refused(encoding: str, member: str) -> None:
    for depth in DEPTHS:
        value = nested(depth) if member != "sampling_params" else {"x": nested(depth)}
        if encoding == "json":
            decode("json", msgspec.json.encode(TEXT | {member: value}))
        else:
            decode("binary", container(TEXT_IN_CONTAINER | {member: value}))


@pytest.mark.parametrize("member", ["dtype", "shape", "data_offsets"])
def test_every_depth_of_a_header_is_read_or_refused(member: str) -> None:
    for depth in DEPTHS:
        decode("binary", tensors_of(a=entry(4, 8, **{member: nested(depth)})))


def test_every_depth_of_an_item_is_read_or_refused() -> None:
    for depth in DEPTHS:
        elements = {"a": {"data": nested(depth), "field": ["batched", {}]}}
        decode("binary", container(TEXT_IN_CONTAINER | {"features": image_features(elements)}))
        decode("json", packed_item(depth))


def nested(depth: int) -> msgspec.Raw:
    return msgspec.Raw(b"[" * depth + b"]" * depth)


def packed_item(depth: int) -> bytes:
    packed = b"\x81\xa1a\x82\xa4data" + b"\x91" * depth + b"\x01\xa5field\x92\xa7batched\x80"
    item = binascii.b2a_base64(packed, newline=False).decode()
    return msgspec.json.encode(TEXT | {"features": image_features(item)})


@encodings
def test_what_a_stranger_sent_is_quoted_in_part(encoding: str) -> None:
    document = (TEXT if encoding == "json" else TEXT_IN_CONTAINER) | {"x" * 100_000: 1}
    body = msgspec.json.encode(document) if encoding == "json" else container(document)
    with pytest.raises(InvalidRequest, match="unknown field") as caught:
        DECODERS[encoding](body)
    assert len(msgspec.json.encode(caught.value.body())) < 2 * MAX_MESSAGE_LENGTH + 200
