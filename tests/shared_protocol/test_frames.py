"""Answer frames arrive whole, however the network cuts them."""

import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_protocol.answer import AnswerFrame, ArrayBytes, Failure, Logprobs, TokenDelta
from shared_protocol.frames import MAX_FRAME_BYTES, BrokenStream, FrameReader, encode_frame
from tests.shared_protocol import strategies


def test_random_deltas_have_every_member() -> None:
    assert strategies.DELTA_MEMBERS.keys() == set(TokenDelta.__struct_fields__)


@given(st.lists(strategies.frames, max_size=5), st.data())
def test_frames_survive_any_cutting(frames: list[AnswerFrame], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    received = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[start:end])
    ]
    assert received == frames


def test_frames_survive_arriving_byte_by_byte() -> None:
    frames: list[AnswerFrame] = [
        TokenDelta(token_ids=[1, 2]),
        TokenDelta(finish_reason="stop"),
        Failure("gone", 502),
    ]
    reader = FrameReader()
    received = [
        frame
        for byte in b"".join(map(encode_frame, frames))
        for frame in reader.feed(bytes([byte]))
    ]
    assert received == frames


def test_logprobs_that_are_no_numbers_survive() -> None:
    values = (-math.inf, math.nan, -0.0, -1.5)
    logprobs = Logprobs(
        ArrayBytes("<i4", (1, 4), struct.pack("<4i", 3, 1, 2, 0)),
        ArrayBytes("<f4", (1, 4), struct.pack("<4f", *values)),
        ArrayBytes("<i4", (1,), struct.pack("<i", 1)),
    )
    (frame,) = FrameReader().feed(encode_frame(TokenDelta(logprobs=logprobs)))
    assert isinstance(frame, TokenDelta)
    assert frame.logprobs == logprobs
    infinite, nan, zero, finite = struct.unpack("<4f", frame.logprobs.logprobs.data)
    assert infinite == -math.inf
    assert math.isnan(nan)
    assert math.copysign(1, zero) == -1
    assert finite == -1.5


def test_a_delta_says_whether_its_choice_is_finished() -> None:
    assert TokenDelta(finish_reason="length").finished
    assert not TokenDelta(token_ids=[1]).finished


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def packed(members: dict[str, object]) -> bytes:
    return framed(msgspec.msgpack.encode(members))


BROKEN = {
    "empty frame": framed(b""),
    "not msgpack": framed(b"\xc1"),
    "no map": framed(b"\x93\x01\x02\x03"),
    "no kind": packed({"token_ids": [1]}),
    "unknown kind": packed({"kind": "x"}),
    "wrong type": packed({"kind": "d", "token_ids": "1"}),
    "missing member": packed({"kind": "f"}),
    "bytes after the frame's end": framed(msgspec.msgpack.encode({"kind": "d"}) + b"\x00"),
    "cut inside": framed(msgspec.msgpack.encode({"kind": "d", "token_ids": [1]})[:-1]),
    "not UTF-8": framed(b"\x82\xa4kind\xa1f\xa7message\xa1\xff"),
    "deeply nested": framed(
        b"\x82\xa4kind\xa1d\xb2kv_transfer_params\x81\xa1a" + b"\x91" * 50_000 + b"\x00"
    ),
    "longer than any frame": struct.pack("<I", MAX_FRAME_BYTES + 1),
    "an HTTP error page": b"<html><head><title>502 Bad Gateway</title></head></html>",
}


@pytest.mark.parametrize("stream", BROKEN.values(), ids=BROKEN)
def test_what_is_no_frame_breaks_the_stream(stream: bytes) -> None:
    with pytest.raises(BrokenStream):
        list(FrameReader().feed(stream))


@given(st.binary(max_size=60))
def test_random_bytes_are_frames_or_break_the_stream(payload: bytes) -> None:
    try:
        frames = list(FrameReader().feed(framed(payload)))
    except BrokenStream:
        return
    assert all(isinstance(frame, TokenDelta | Failure) for frame in frames)


@given(strategies.frames, st.data())
def test_a_flipped_bit_leaves_a_frame_or_breaks_the_stream(
    frame: AnswerFrame, data: st.DataObject
) -> None:
    stream = bytearray(encode_frame(frame))
    position = data.draw(st.integers(0, len(stream) - 1))
    stream[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        list(FrameReader().feed(bytes(stream)))
    except BrokenStream:
        return
