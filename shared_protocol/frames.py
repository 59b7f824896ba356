"""The binary form of an answer: msgpack frames, each behind its length in four bytes."""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from shared_protocol.answer import AnswerFrame

MAX_FRAME_BYTES: Final = 1 << 30

_LENGTH: Final = struct.Struct("<I")
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(AnswerFrame)


class BrokenStream(Exception):
    """The bytes of an answer are not frames: the peer is broken, or is not ours."""


def encode_frame(frame: AnswerFrame) -> bytes:
    payload = _encoder.encode(frame)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Puts frames together from chunks of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[AnswerFrame]:
        """Yield the frames that `chunk` completes.

        Raises:
            BrokenStream: for bytes that are no frame.
        """
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise BrokenStream(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                frame = _decoder.decode(payload)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BrokenStream(f"not a frame: {error}") from error
            yield frame
