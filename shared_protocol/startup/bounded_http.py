"""What a client may have a connection do: how large a head, and how slow to send and to read."""

import asyncio
import json
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared_protocol.errors import HeadTooLarge, RequestTimeout, TandemError

MAX_HEAD_BYTES: Final = 2**16
"""Of a request's line and headers. A dozen short headers are sent by anyone who means well."""

_LINGER_S: Final = 1.0
"""From a refusal to the closing: to close on what still comes would take the refusal away."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """
    Attributes:
        read_s: from a request's first byte, or a connection's opening, to the request's last byte.
        stall_s: how long more of an answer than the sockets' buffers hold may lie there unread.
    """

    read_s: float
    stall_s: float


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol, which has none of these limits."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._read_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        # What came of a head is told header by header, and of an endless header never; nor are
        # the trailers of a body and what stands beside the sizes of its chunks.
        self._untold_bytes = 0
        self._told = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._read_timer)
        _cancel(self._stall_timer)
        _cancel(self._flush_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._told = False
        super().data_received(data)
        self._untold_bytes = 0 if self._told else self._untold_bytes + len(data)
        if self._untold_bytes > MAX_HEAD_BYTES and not self._refused:
            self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._told = True
        self._head_bytes = 0
        self._start_reading()

    def on_url(self, url: bytes) -> None:
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add_to_head(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def _add_to_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            # The parser stops, and asks for `send_400_response`.
            raise _head_too_large()

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._told = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._told = True
        _cancel(self._read_timer)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            # Too little to have paused the writing; uvicorn would wait for it without end.
            self._flush_timer = self.loop.call_later(self._limits.stall_s, self._flushed_or_cut)

    def _flushed_or_cut(self) -> None:
        if self.transport.get_write_buffer_size():
            self._stalled()

    def _start_reading(self) -> None:
        _cancel(self._read_timer)
        self._read_timer = self.loop.call_later(self._limits.read_s, self._read_for_too_long)

    def _read_for_too_long(self) -> None:
        if self.flow.read_paused:
            # It is the application that does not read.
            self._start_reading()
        else:
            self._refuse(
                RequestTimeout(f"The request did not arrive within {self._limits.read_s:g} s")
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self._limits.stall_s, self._stalled)

    def resume_writing(self) -> None:
        _cancel(self._stall_timer)
        super().resume_writing()

    def _stalled(self) -> None:
        logger.warning("%s does not read its answer: its connection is cut", self.client)
        self.transport.abort()

    def _refuse(self, error: TandemError) -> None:
        """Answer, unless another answer has begun or nothing was asked, and close."""
        self._refused = True
        _cancel(self._read_timer)
        idle = self.cycle is None or self.cycle.response_complete
        if self._in_head if idle else not self.cycle.response_started:
            self.transport.write(_response(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"A request's line and headers have at most {MAX_HEAD_BYTES} bytes")


def _response(error: TandemError) -> bytes:
    content = json.dumps(error.body()).encode()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + content


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
