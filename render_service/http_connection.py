"""One HTTP/1.1 connection to a replica, for one request at a time.

Not a client library's, since three things have to hold at once: it is known whether the server may
have seen a part of a body; `abort` ends everything, whoever is being cancelled at that moment; and
each of very many small pieces of an answer costs microseconds, not a tenth of a millisecond.

The parser is httptools', which is llhttp, that of Node.js.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import httptools

from render_service.patience import patient_timeout

MAX_HEAD_BYTES: Final = 1 << 20
"""Of a response: a replica names each item that it holds in a header."""

_MOST_UNREAD_BYTES: Final = 1 << 18

# A replica whose host vanishes closes nothing. Streams may be silent for any time; where nobody
# probes the replica, it is the kernel that finds out, within about half a minute.
_SOCKET_OPTIONS: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]


class ConnectFailed(Exception):
    """There was no connection: nothing has been sent. Its cause is the system's error, if any."""


class ConnectionLost(Exception):
    """It broke or was closed, was silent for too long, or what came is not HTTP.

    Its cause is the system's error, if there was one.
    """


@dataclass(frozen=True)
class Origin:
    """
    Attributes:
        ssl_context: of https; None for http.
    """

    host: str
    port: int
    ssl_context: ssl.SSLContext | None


@dataclass(frozen=True)
class ResponseHead:
    """
    Attributes:
        headers: by their names in lower case.
    """

    status: int
    headers: Mapping[str, str]

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing else tells the end of the body, as of servers and proxies of HTTP/1.0."""
        return not {"content-length", "transfer-encoding"} & self.headers.keys()


class HttpConnection(asyncio.Protocol):
    """Send a head, then the body once it is asked for, then read the response.

    Attributes:
        origin: what it leads to.
        opened: whether it is open; `on_lost` is called when it is no more.
    """

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.opened = False
        self.on_lost: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._opening: asyncio.Task[object] | None = None
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._cause: Exception | None = None
        self._expecting = False
        self._writable = True
        self._readable = True
        self._forget_response()

    def _forget_response(self) -> None:
        self._asked = False
        self._body_sent = False
        self._head: ResponseHead | None = None
        self._head_bytes = 0
        self._headers: dict[str, str] = {}
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._ended = False
        self._kept_alive = False

    # For whoever sends a request.

    @property
    def reusable(self) -> bool:
        """Whether it can have another request: this one and its response are over."""
        over = self._body_sent and self._ended and not self._unread
        return over and self._kept_alive and self._lost is None

    async def open(self, timeout_s: float) -> None:
        """Connect.

        Raises:
            ConnectFailed: if that fails, takes longer, or the connection is aborted meanwhile.
        """
        try:
            async with patient_timeout(timeout_s):
                await self._open()
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:
            raise ConnectFailed(_describe(error)) from error

    async def _open(self) -> None:
        origin = self.origin
        self._opening = self._loop.create_task(
            self._loop.create_connection(
                lambda: self,
                origin.host,
                origin.port,
                ssl=origin.ssl_context,
                server_hostname=origin.host if origin.ssl_context else None,
            )
        )
        self._opening.add_done_callback(_look_at_error)
        try:
            # Not awaited itself: if this is cancelled when it is just done, somebody has to close
            # what it opened.
            await asyncio.wait([self._opening])
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._opening.cancelled():
            raise ConnectFailed("given up")
        self._opening.result()
        self.opened = self._lost is None

    def send_head(self, head: bytes) -> None:
        self._forget_response()
        self._expecting = True
        self._write(head)

    async def wait_until_asked(self, timeout_s: float) -> bool:
        """Wait until the server asks for the body, or has said nothing for `timeout_s`.

        Returns:
            Whether to send the body: the server has not answered without it.

        Raises:
            ConnectionLost: if it is lost before.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._asked and self._head is None:
                    await self._something()
        return self._head is None

    async def send_body(self, pieces: Iterable[bytes], timeout_s: float) -> None:
        """Send all of `pieces`, unless there is a response before.

        Between two of them others get a turn.

        Raises:
            ConnectionLost: if it is lost, or the server does not read for `timeout_s`.
        """
        for piece in pieces:
            if self._head is not None:
                return
            self._write(piece)
            await asyncio.sleep(0)
            await self._until_writable(timeout_s)
        self._body_sent = True

    async def _until_writable(self, timeout_s: float) -> None:
        while not self._writable and self._head is None:
            await self._something(timeout_s)

    async def head(self, timeout_s: float | None = None) -> ResponseHead:
        """Wait for the response.

        Raises:
            ConnectionLost: if it is lost before, or silent for longer than `timeout_s`.
        """
        while self._head is None:
            await self._something(timeout_s)
        return self._head

    async def read(self, timeout_s: float | None = None) -> bytes:
        """Return what has come of the body since; nothing if the body is over.

        Raises:
            ConnectionLost: as `head`.
        """
        while not self._unread:
            if self._ended:
                return b""
            await self._something(timeout_s)
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if not self._readable and self._transport is not None:
            self._readable = True
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close it at once; whoever waits for something of it finds it lost."""
        self._lose("closed here")
        if self._opening is not None:
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()

    @property
    def _stream(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _write(self, data: bytes) -> None:
        self._check()
        self._stream.write(data)

    def _check(self) -> None:
        if self._lost is not None:
            raise ConnectionLost(self._lost) from self._cause

    async def _something(self, timeout_s: float | None = None) -> None:
        """Wait until something has happened to this connection."""
        self._check()
        self._waiter = self._loop.create_future()
        try:
            if timeout_s is None:
                await self._waiter
                return
            async with asyncio.timeout(timeout_s):
                await self._waiter
        except TimeoutError:
            raise ConnectionLost(f"silent for {timeout_s:g} s") from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose(self, reason: str, cause: Exception | None = None) -> None:
        if self._lost is None:
            self._lost, self._cause = reason, cause
        self._wake()

    # For the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none by their class.
        self._transport = cast("asyncio.Transport", transport)
        if self._lost is not None:
            self._transport.abort()
            return
        # Of one that was reset as soon as it was open, uvloop has no socket any more, and the
        # system takes no option.
        if (connected := transport.get_extra_info("socket")) is not None:
            with suppress(OSError):
                for option in _SOCKET_OPTIONS:
                    connected.setsockopt(*option)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._head is not None and self._head.ends_with_connection:
            self._ended = True
        self._lose("closed by the server" if exc is None else _describe(exc), exc)
        self._transport = None
        self.opened = False
        self.on_lost()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break_off(f"no HTTP: {error}")
        if self._head is None and self._head_bytes > MAX_HEAD_BYTES:
            self._break_off(f"a head of more than {MAX_HEAD_BYTES} bytes")
        self._wake()

    def _break_off(self, reason: str) -> None:
        self._lose(reason)
        self.abort()

    # For the parser.

    def on_message_begin(self) -> None:
        if not self._expecting:
            raise ConnectionLost("a response that nobody asked for")
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._head = ResponseHead(status, self._headers)
        else:
            self._asked = self._asked or status == 100

    def on_body(self, body: bytes) -> None:
        self._unread.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > _MOST_UNREAD_BYTES and self._readable:
            self._readable = False
            self._stream.pause_reading()

    def on_message_complete(self) -> None:
        # There is one more after each status that is below 200.
        if self._head is not None:
            self._ended = True
            self._expecting = False
            self._kept_alive = self._parser.should_keep_alive()


def _look_at_error(task: asyncio.Task[object]) -> None:
    """Whoever was to look at it may have been cancelled."""
    if not task.cancelled():
        task.exception()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
