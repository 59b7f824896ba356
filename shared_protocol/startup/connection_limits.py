"""What a client may have a connection do: how large a head, and how slow to send and to read.

uvicorn closes a connection that idles between two requests. It waits for ever for the first one,
for the rest of any, and for a client to read.
"""

import asyncio
import json
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from shared_protocol.errors import HeadTooLarge, RequestTimeout, TandemError

MAX_HEAD_BYTES: Final = 2**16
"""Several times what browsers and proxies send."""

_LINGER_S: Final = 1.0
"""From a refusal to the closing: to close on what still comes would take the refusal away."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """
    Attributes:
        read_s: from a request's first byte, or a connection's opening, to the request's last byte.
        stall_s: how long more of an answer than the sockets' buffers hold may lie there unread.
        max_head_bytes: of a request's line and headers.
    """

    read_s: float
    stall_s: float
    max_head_bytes: int = MAX_HEAD_BYTES


class LimitedConnection(asyncio.Protocol):
    """Mixed into a protocol of uvicorn's: its timers, and the refusal of a request.

    The protocol starts and stops the time for reading, since its parser knows where a request
    begins and ends.
    """

    cycle: Any
    client: tuple[str, int] | None
    flow: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._read_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def _answering(self) -> Any:
        """uvicorn's cycle of the request that is being answered, or was last; None before any."""
        return self.cycle

    def _has_begun_head(self) -> bool:
        """Where no request is being answered: whether something of one has come."""
        raise NotImplementedError

    def _is_idle(self) -> bool:
        cycle = self._answering()
        return cycle is None or cycle.response_complete

    def _has_left(self) -> bool:
        """Whether the connection is none of this protocol's any more: refused, or a web socket."""
        return self._refused or self.transport.get_protocol() is not self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._start_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, *event: Any) -> None:
        super().handle_websocket_upgrade(*event)  # type: ignore[misc]
        self._stop_timers()

    def _stop_timers(self) -> None:
        for timer in (self._read_timer, self._stall_timer, self._flush_timer):
            if timer is not None:
                timer.cancel()

    def _start_reading(self) -> None:
        self._stop_reading()
        self._read_timer = self.loop.call_later(self._limits.read_s, self._read_for_too_long)

    def _stop_reading(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

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
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self.transport.get_write_buffer_size():
            # Too little to have paused the writing; uvicorn would wait for it without end.
            self._flush_timer = self.loop.call_later(self._limits.stall_s, self._flushed_or_cut)

    def _flushed_or_cut(self) -> None:
        # What lies there while another request is answered may be of that answer, and be new.
        if self._is_idle() and self.transport.get_write_buffer_size():
            self._stalled()

    def _stalled(self) -> None:
        logger.warning("%s does not read its answer: its connection is cut", self.client)
        # Not `close`, which waits until the client has read what is left.
        self.transport.abort()

    def _head_too_large(self) -> HeadTooLarge:
        most = self._limits.max_head_bytes
        return HeadTooLarge(f"A request's line and headers have at most {most} bytes")

    def _refuse(self, error: TandemError) -> None:
        """Answer, unless another answer has begun or nothing was asked, and close."""
        self._refused = True
        self._stop_reading()
        if self._is_idle():
            answered = not self._has_begun_head()
        else:
            cycle = self._answering()
            answered = cycle.response_started
            # What the application still says of this request has no place any more.
            cycle.disconnected = True
            cycle.message_event.set()
        if not answered:
            self.transport.write(_response(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        # What still comes is thrown away.
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _response(error: TandemError) -> bytes:
    content = json.dumps(error.body()).encode()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + content
