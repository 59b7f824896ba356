"""What one connection may take, beyond what uvicorn bounds itself.

uvicorn closes a connection that idles between two requests. It waits for ever for the first one,
for the rest of a head, and for a client to read; and the parser that it prefers, httptools, takes
heads of any size.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """
    Attributes:
        head_timeout_s: from opening a connection, or the first byte of a later request, to the
            end of the request's head.
        max_head_bytes: of a request line and headers, give or take what comes with one read.
        write_timeout_s: how long a client may leave an answer unread.
    """

    head_timeout_s: float = 120.0
    max_head_bytes: int = 1 << 16
    write_timeout_s: float = 60.0


def limited_h11(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """h11 has its own limit on the size of a head."""
    return type("LimitedH11Protocol", (_LimitedTime, H11Protocol), {"limits": limits})


def limited_httptools(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    bases = (_LimitedTime, _LimitedHead, HttpToolsProtocol)
    return type("LimitedHttpToolsProtocol", bases, {"limits": limits})


class _LimitedTime(asyncio.Protocol):
    """Mixed into a protocol of uvicorn's."""

    limits: ClassVar[ConnectionLimits]
    cycle: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and self._is_waiting():
            self._watch_head()
        super().data_received(data)
        if not self._is_waiting():
            self._stop_head_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.limits.write_timeout_s, self._abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self.transport.get_write_buffer_size():
            # Too little to have paused the writing; uvicorn would wait for it without end.
            self._flush_timer = self.loop.call_later(
                self.limits.write_timeout_s, self._flushed_or_cut
            )

    def _flushed_or_cut(self) -> None:
        if self.transport.get_write_buffer_size():
            self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Whether there is no request to answer, whatever has come of the next one."""
        if self.transport.get_protocol() is not self:
            # It has become a web socket.
            return False
        return self.cycle is None or self.cycle.response_complete

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort(self) -> None:
        # Not `close`, which waits until the client has read what is left.
        self.transport.abort()


class _LimitedHead(HttpToolsProtocol):
    limits: ClassVar[ConnectionLimits]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes: int | None = None
        # The parser tells of an endless trailer never, nor of what stands beside a chunk's size.
        self._untold_bytes = 0
        self._told = False

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._told = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._told = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        self._told = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head_bytes is None:
            self._untold_bytes = 0 if self._told else self._untold_bytes + len(data)
            if self._untold_bytes > self.limits.max_head_bytes:
                self.transport.abort()
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.limits.max_head_bytes:
            self.send_400_response("The head of the request is too large.")
