"""uvicorn's two protocols for HTTP, within the limits of a connection."""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared_protocol.errors import InvalidRequest
from shared_protocol.startup.connection_limits import LimitedConnection


class BoundedHttpTools(LimitedConnection, HttpToolsProtocol):
    """httptools takes heads of any size; here they have one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._running: Any = None
        self._in_head = False
        self._head_bytes = 0
        # What came of a head is told header by header, and of an endless header never; nor are
        # the trailers of a body and what stands beside the sizes of its chunks.
        self._untold_bytes = 0
        self._told = False

    def _answering(self) -> Any:
        # Not `cycle`, which is that of a request that waits behind the one that is answered.
        return self._running

    def _has_begun_head(self) -> bool:
        return self._in_head

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._is_idle():
            # uvicorn tells the request that came last, which may wait behind this one.
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._told = False
        super().data_received(data)
        if self._has_left():
            return
        self._untold_bytes = 0 if self._told else self._untold_bytes + len(data)
        if self._untold_bytes > self._limits.max_head_bytes:
            self._refuse(self._head_too_large())
        elif self._read_timer is None and self._is_idle():
            # What came ended uvicorn's time for idling, and has begun no request.
            self._start_reading()

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
        if self._head_bytes > self._limits.max_head_bytes:
            # The parser stops, and asks for `send_400_response`.
            raise self._head_too_large()

    def send_400_response(self, msg: str) -> None:
        too_large = self._head_bytes > self._limits.max_head_bytes
        self._refuse(self._head_too_large() if too_large else InvalidRequest(msg))

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._told = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._told = True
        self._stop_reading()
        super().on_message_complete()


class BoundedH11(LimitedConnection, H11Protocol):
    """h11 limits heads itself, give or take what comes with one read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = h11.Connection(h11.SERVER, self._limits.max_head_bytes)

    def _has_begun_head(self) -> bool:
        if self.conn.their_state is h11.ERROR:
            return True
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        begun = self._request_in_body()
        super().data_received(data)
        if self._has_left():
            return
        in_body = self._request_in_body()
        if begun not in (None, in_body):
            self._stop_reading()
        if in_body is None and not self._is_idle():
            self._stop_reading()
        elif self._read_timer is None:
            self._start_reading()

    def _request_in_body(self) -> Any:
        return self.cycle if self.conn.their_state is h11.SEND_BODY else None

    def send_400_response(self, msg: str) -> None:
        too_large = len(self.conn.trailing_data[0]) > self._limits.max_head_bytes
        self._refuse(self._head_too_large() if too_large else InvalidRequest(msg))
