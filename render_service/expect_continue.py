"""`Expect: 100-continue` for httpx: a body goes out once the server has asked for it.

A stopped process takes no request, but its kernel does, connection, head, body and all; when the
process goes on, it finds them. Only a body that was never sent is certainly not begun there, also
later. A server of ASGI asks for the body when its application first wants to read it, so asking
also means that the process runs.
"""

import ssl
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

import httpcore
import httpx

from render_service.patience import patient_timeout

EXPECT_HEADERS: Final = {"Expect": "100-continue"}

CONNECTION: Final = "connection"
"""The extension of a response that holds its connection, which `aclose` closes whatever httpcore
makes of the response: cancelled twice while it closes that, it would keep the connection for ever.
"""

_ASKING: Final = b"HTTP/1.1 100"
_HEAD_END: Final = b"\r\n\r\n"
_READ_BYTES: Final = 1 << 16


class Handshake:
    """What became of the body of one request that was sent with `EXPECT_HEADERS`.

    Attributes:
        timeout_s: how long the server may take to ask for the body. Then it is sent all the same,
            as HTTP has it: there are servers that never ask.
        body_sent: whether the server may have the body, or a part of it.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.head_sent = False
        self.body_sent = False


handshake_of_task: Final[ContextVar[Handshake | None]] = ContextVar("handshake", default=None)
"""Of the request that the current task sends; None for one that is sent at once."""


class ExpectingTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport; requests that have a handshake wait for its outcome."""

    def __init__(
        self,
        *,
        verify: ssl.SSLContext,
        limits: httpx.Limits,
        socket_options: Iterable[httpcore.SOCKET_OPTION],
    ) -> None:
        super().__init__(verify=verify)
        # httpx passes no network backend on.
        self._pool = _Pool(
            ssl_context=verify,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            socket_options=socket_options,
            network_backend=_Backend(),
        )


class _Pool(httpcore.AsyncConnectionPool):
    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        return _Connection(
            origin=origin,
            ssl_context=self._ssl_context,
            keepalive_expiry=self._keepalive_expiry,
            network_backend=self._network_backend,
            socket_options=self._socket_options,
        )


class _Connection(httpcore.AsyncHTTPConnection):
    """Says of each response on which connection it came: see `CONNECTION`."""

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        response = await super().handle_async_request(request)
        response.extensions[CONNECTION] = self
        return response


class _Backend(httpcore.AnyIOBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        connect = super().connect_tcp(host, port, None, local_address, socket_options)
        try:
            if timeout is None:
                return _Stream(await connect)
            async with patient_timeout(timeout):
                return _Stream(await connect)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except AttributeError as error:
            # Of anyio's stream, whose socket is gone: it was reset as soon as it was open.
            raise httpcore.ConnectError("reset as soon as it was open") from error


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that holds a body back until it is wanted."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read_ahead = b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        handshake = handshake_of_task.get()
        if handshake is not None:
            if handshake.head_sent and not handshake.body_sent:
                await self._wait_until_wanted(handshake)
                handshake.body_sent = True
            handshake.head_sent = True
        await self._stream.write(buffer, timeout)

    async def _wait_until_wanted(self, handshake: Handshake) -> None:
        head = bytearray()
        try:
            while _HEAD_END not in head and len(head) < _READ_BYTES:
                data = await self._stream.read(_READ_BYTES, handshake.timeout_s)
                if not data:
                    raise httpcore.ReadError("closed before it asked for the body")
                head += data
        except httpcore.ReadTimeout:
            return
        finally:
            # What asks for the body is read again, and skipped, by httpcore.
            self._read_ahead = bytes(head)
        if not head.startswith(_ASKING):
            # httpcore takes this for a server that has answered without the body, as it has.
            raise httpcore.WriteError("answered without having asked for the body")

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._read_ahead:
            data, self._read_ahead = self._read_ahead[:max_bytes], self._read_ahead[max_bytes:]
            return data
        return await self._stream.read(max_bytes, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
