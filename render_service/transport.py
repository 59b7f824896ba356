"""The HTTP between the tiers: probes of a replica, and the stream of one answer.

What matters of a failure is whether the replica may have begun the request, for then nobody else
may get it:

- `NotAccepted`: it has not. There was no connection, the replica has not asked for the body
  (`expect_continue`), or it answered 503 or 429.
- `ReplicaFailed`: it may have. The connection was lost after the body was on its way, or what came
  back is no answer of a replica.
- any other `TandemError`: it has answered, and this is the answer.

The pool drops an idle connection after ``keepalive_expiry_s``, long before the replica does
(`MIN_SERVER_KEEP_ALIVE_S`), so that a request seldom meets one that is just being closed.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx
import msgspec

from render_service.expect_continue import (
    CONNECTION,
    EXPECT_HEADERS,
    ExpectingTransport,
    Handshake,
    handshake_of_task,
)
from render_service.patience import patient_timeout
from shared_protocol.answer import FRAMES_CONTENT_TYPE, Failure, TokenDelta
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE
from shared_protocol.errors import (
    InternalError,
    InvalidRequest,
    MissingFeatures,
    PayloadTooLarge,
    ReplicaFailed,
    TandemError,
    UnknownModel,
)
from shared_protocol.frames import BrokenStream, FrameReader
from shared_protocol.held_items import HELD_ITEMS_HEADER, decode_names
from shared_protocol.serving_info import INFO_PATH, ServingInfo
from shared_protocol.tensors import Buffer

logger = logging.getLogger(__name__)

GENERATE_PATH: Final = "/inference/v1/generate"

MIN_SERVER_KEEP_ALIVE_S: Final = 60
"""How long a replica must at least keep an idle connection."""

TURN_S: Final = 0.002
"""How long one stream is worked on while others wait: where replicas are faster than this process,
a read brings hundreds of deltas, and each of 32 streams would hold up probes for tens of ms.
"""

PIECE_BYTES: Final = 1 << 18
"""A body of 10 MB in one piece would hold up everything else for as long as it is copied."""

_MAX_ERROR_BYTES: Final = 1 << 20
_ERROR_TIMEOUT_S: Final = 5.0
_END_TIMEOUT_S: Final = 0.2

# A replica whose host vanishes closes nothing. Streams may be silent for any time; where nobody
# probes the replica, it is the kernel that finds out, within about half a minute.
_SOCKET_OPTIONS: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]

_CLIENT_ERRORS: Final[dict[int, type[TandemError]]] = {
    error.status: error for error in (InvalidRequest, UnknownModel, PayloadTooLarge)
}

_NOT_THE_CLIENTS: Final = frozenset(
    {
        # Our credentials were refused, not the client's.
        httpx.codes.UNAUTHORIZED,
        httpx.codes.FORBIDDEN,
        # The network between the tiers is slow.
        httpx.codes.REQUEST_TIMEOUT,
    }
)


class NotAccepted(Exception):
    """The replica has not begun the request and never will: another one may get it."""

    def __init__(
        self, reason: str, *, retry_after_s: int | None = None, busy: bool = False
    ) -> None:
        """`busy`: it said so itself, and may take the next request."""
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.busy = busy


class NotReady(Exception):
    """What a probe found instead of a replica that takes requests."""


class NoAnswer(NotReady):
    """Nothing at all came back, not even from the replica's host."""


class Exchange:
    """One request at a replica, as others see it.

    Attributes:
        handshake: whether the replica may have begun the request.
        cut_off: done when somebody has ended the exchange from outside.
    """

    def __init__(self, handshake: Handshake) -> None:
        self.handshake = handshake
        self.cut_off: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def begun(self) -> bool:
        return self.handshake.body_sent

    def cut(self) -> None:
        """End it: it is `NotAccepted` if it was not begun, and `ReplicaFailed` if it was."""
        if not self.cut_off.done():
            self.cut_off.set_result(None)


class _CutOff(Exception):
    """The exchange was cut before there was an answer."""


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """
    Attributes:
        read_timeout_s: the longest silence in an answer; None waits forever, as a request may
            be queued for any time.
        send_timeout_s: how long a replica may take to receive a request once it has asked for it.
        probe_timeout_s: how long a replica may take to answer a probe.
        continue_timeout_s: after which the body is sent to a replica that has not asked for it.
            Longer than it takes to find out that a replica is silent, or nothing is known of it.
        max_idle_connections: kept for later requests.
        keepalive_expiry_s: how long they are kept; at most half of `MIN_SERVER_KEEP_ALIVE_S`.
    """

    connect_timeout_s: float = 3.0
    read_timeout_s: float | None = None
    send_timeout_s: float = 60.0
    probe_timeout_s: float = 0.5
    continue_timeout_s: float = 5.0
    max_idle_connections: int = 256
    keepalive_expiry_s: float = 15.0

    def __post_init__(self) -> None:
        if self.keepalive_expiry_s > MIN_SERVER_KEEP_ALIVE_S / 2:
            raise ValueError(
                f"keepalive_expiry_s is {self.keepalive_expiry_s:g}, at most "
                f"{MIN_SERVER_KEEP_ALIVE_S / 2:g} is safe"
            )


class GenerateTransport:
    """Talks with replicas by their URL, which may carry a user and a password."""

    def __init__(
        self,
        settings: TransportSettings | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        credential: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Args:
            ssl_context: for replicas that are asked by https.
            credential: what replicas want to see, asked for each time; a URL's own goes first.
        """
        self._settings = settings or TransportSettings()
        self._ssl_context = ssl_context or httpx.create_ssl_context()
        self._credential = credential
        self._client = self._make_client()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def probe_timeout_s(self) -> float:
        return self._settings.probe_timeout_s

    def _make_client(self) -> httpx.AsyncClient:
        settings = self._settings
        return httpx.AsyncClient(
            transport=ExpectingTransport(
                verify=self._ssl_context,
                limits=httpx.Limits(
                    max_keepalive_connections=settings.max_idle_connections,
                    keepalive_expiry=settings.keepalive_expiry_s,
                ),
                socket_options=_SOCKET_OPTIONS,
            ),
            timeout=httpx.Timeout(
                connect=settings.connect_timeout_s,
                read=settings.read_timeout_s,
                write=settings.send_timeout_s,
                # There is no bound on connections that one could wait behind.
                pool=None,
            ),
            headers={"Accept-Encoding": "identity"},
            # Neither the machine's proxy nor its .netrc belongs between the tiers.
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, which ends the answers that are still streaming."""
        await self._client.aclose()
        await asyncio.gather(*self._background)

    async def probe(self, url: str) -> ServingInfo:
        """Ask whether the replica takes requests, and what it serves.

        Raises:
            NoAnswer: if it is silent.
            NotReady: if it does not say that it takes requests, with its reason.
        """
        address, auth = _address(url, INFO_PATH)
        timeout_s = self._settings.probe_timeout_s
        try:
            async with patient_timeout(timeout_s):
                response = await self._get(address, auth)
        except TimeoutError as error:
            raise NoAnswer(f"no answer on {INFO_PATH} within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            kind = NoAnswer if _is_silence(error) else NotReady
            raise kind(f"no answer on {INFO_PATH} ({_describe(error)})") from error
        if response.status_code != httpx.codes.OK:
            answer = _parse_error(response.content)
            message = f": {answer.message}" if answer else ""
            raise NotReady(f"{INFO_PATH} answered {response.status_code}{message}")
        try:
            return msgspec.json.decode(response.content, type=ServingInfo)
        except msgspec.DecodeError as error:
            raise NotReady(f"its {INFO_PATH} is not understood: {error}") from error

    async def _get(self, address: httpx.URL, auth: httpx.Auth | None) -> httpx.Response:
        # A client of its own: a probe asks whether the replica still takes connections, and does
        # not wait for one behind the streams.
        async with self._make_client() as client:
            return await client.get(address, auth=auth, headers=_encoded(self._authorization()))

    def _authorization(self) -> dict[str, str]:
        credential = self._credential()
        return {} if credential is None else {"Authorization": f"Bearer {credential}"}

    @asynccontextmanager
    async def stream(
        self,
        url: str,
        body: Sequence[Buffer],
        *,
        content_type: str = BINARY_CONTENT_TYPE,
        headers: Mapping[str, str] | None = None,
        exchanges: set[Exchange] | None = None,
        on_named: Callable[[list[str | None]], object] = lambda names: None,
    ) -> AsyncIterator[AsyncIterator[TokenDelta]]:
        """Send a request; inside the context, iterate over its deltas, the last one finished.

        Leaving the context before the last delta closes the connection at once, which aborts the
        request in the engine.

        Args:
            body: its parts, which are not copied.
            exchanges: holds this one while it runs, for whoever wants to cut it.
            on_named: is told by which names the replica holds the items that were sent.

        Raises:
            NotAccepted: on entering, if the replica has not begun the request.
            ReplicaFailed: on entering or iterating, if it may have begun and is lost.
            TandemError: on entering or iterating, if it answers with an error.
        """
        exchange = Exchange(Handshake(self._settings.continue_timeout_s))
        running = set() if exchanges is None else exchanges
        running.add(exchange)
        try:
            sent = {"Content-Type": content_type, **(headers or {})}
            response = await self._post(exchange, url, body, sent)
            async with self._answered(exchange, response) as deltas:
                if (names := response.headers.get(HELD_ITEMS_HEADER)) is not None:
                    on_named(decode_names(names))
                yield deltas
        finally:
            running.discard(exchange)

    @asynccontextmanager
    async def _answered(
        self, exchange: Exchange, response: httpx.Response
    ) -> AsyncIterator[AsyncIterator[TokenDelta]]:
        content = _Body(response)
        # Whoever reads then finds the connection closed.
        exchange.cut_off.add_done_callback(lambda _: self._in_background(content.break_off()))
        try:
            if response.status_code != httpx.codes.OK:
                raise await _refusal(response, content)
            answer = _Answer(response, content)
            async with aclosing(answer.deltas()) as deltas:
                yield deltas
            if answer.complete:
                await content.read_end()
        finally:
            await asyncio.shield(self._in_background(content.close()))

    async def _post(
        self, exchange: Exchange, url: str, body: Sequence[Buffer], headers: dict[str, str]
    ) -> httpx.Response:
        address, auth = _address(url, GENERATE_PATH)
        headers = {
            "Accept": FRAMES_CONTENT_TYPE,
            **EXPECT_HEADERS,
            "Content-Length": str(sum(memoryview(part).nbytes for part in body)),
            **self._authorization(),
            **headers,
        }
        request = self._client.build_request(
            "POST", address, content=_pieces(body), headers=_encoded(headers)
        )
        try:
            return await self._send(exchange, request, auth)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotAccepted(f"could not connect ({_describe(error)})") from error
        except (
            httpx.NetworkError,
            httpx.TimeoutException,
            httpx.RemoteProtocolError,
            _CutOff,
        ) as error:
            if not exchange.begun:
                raise NotAccepted(f"has not asked for the body ({_describe(error)})") from error
            raise _lost(address, error) from error

    async def _send(
        self, exchange: Exchange, request: httpx.Request, auth: httpx.Auth | None
    ) -> httpx.Response:
        """Send as httpx does, but without losing a connection if this is cancelled or cut.

        Cancelled between connecting and sending, or while it closes a response, httpcore 1.0
        leaves the connection open and in its pool forever. So it works in tasks of its own. Once
        it is sending, the task can be cancelled; before, it is told to stop when it gets there.
        """
        sending = asyncio.Event()
        abandoned = asyncio.Event()

        async def trace(event: str, _: object) -> None:
            if event == "http11.send_request_headers.started":
                sending.set()
                if abandoned.is_set():
                    raise asyncio.CancelledError

        request.extensions["trace"] = trace
        context = copy_context()
        context.run(handshake_of_task.set, exchange.handshake)
        work = self._client.send(request, auth=auth, stream=True)
        task = asyncio.create_task(work, context=context)
        try:
            await asyncio.wait((task, exchange.cut_off), return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            raise _CutOff
        except (asyncio.CancelledError, _CutOff):
            abandoned.set()
            if sending.is_set():
                task.cancel()
            self._in_background(_discard(task))
            raise

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


async def _pieces(body: Sequence[Buffer]) -> AsyncIterator[bytes]:
    """Cut `body` up: what is under way is copied, and goes out between other streams' turns."""
    for part in body:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield bytes(view[start : start + PIECE_BYTES])


def _encoded(headers: Mapping[str, str]) -> httpx.Headers:
    # What a credential is read as, and compared as. By itself httpx takes nothing but ASCII.
    return httpx.Headers(headers, encoding="utf-8")


async def _discard(task: asyncio.Task[httpx.Response]) -> None:
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        await task.result().aclose()


class _Body:
    """The body of a response, and its end.

    Read from the stream itself: httpx's own iterators close the response when they end, and if
    that is cancelled, the connection is lost like those of `GenerateTransport._send`.
    """

    def __init__(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._response = response
        self._stream = aiter(response.stream)
        self._ended = False

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk
        self._ended = True

    async def read_end(self) -> None:
        """Read what is left after the last delta, so that the connection can be used again."""
        with suppress(TimeoutError, httpx.TransportError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                async for _ in self.chunks():
                    pass

    async def break_off(self) -> None:
        """Close the connection, whatever httpcore makes of it: this is what aborts the request."""
        if not self._ended:
            await self._response.extensions[CONNECTION].aclose()

    async def close(self) -> None:
        await self.break_off()
        await self._response.aclose()


class _Turn:
    """The time of one stream between two passes of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None

    def is_over(self) -> bool:
        now = time.perf_counter()
        if self._began is None:
            self._began = now
            self._loop.call_soon(self._end)
        return now - self._began > TURN_S

    def _end(self) -> None:
        self._began = None


class _Answer:
    """The deltas of one answer.

    Attributes:
        complete: whether the last one has been seen.
    """

    def __init__(self, response: httpx.Response, content: _Body) -> None:
        self._url = response.url
        self._content_type = response.headers.get("content-type", "")
        self._content = content
        self.complete = False

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        if self._content_type != FRAMES_CONTENT_TYPE:
            raise _lost(self._url, BrokenStream(f"an answer of type {self._content_type!r}"))
        reader, turn = FrameReader(), _Turn()
        try:
            async for chunk in self._content.chunks():
                for frame in reader.feed(chunk):
                    if isinstance(frame, Failure):
                        raise _error(self._url, frame.status, frame.message, frame.param)
                    self.complete = frame.finished
                    yield frame
                    if self.complete:
                        return
                    if turn.is_over():
                        await asyncio.sleep(0)
        except (httpx.TransportError, BrokenStream) as error:
            raise _lost(self._url, error) from error
        raise _lost(self._url, BrokenStream("the answer has no last delta"))


class _ErrorObject(msgspec.Struct):
    message: str
    param: str | None = None
    missing_hashes: list[str] = []


class _ErrorBody(msgspec.Struct):
    error: _ErrorObject


def _parse_error(body: bytes) -> _ErrorObject | None:
    """Read the body of an error of a replica; None if it is not one."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return None


async def _refusal(response: httpx.Response, content: _Body) -> Exception:
    """What to raise for an answer that is not 200."""
    status = response.status_code
    error = _parse_error(await _read_error(content))
    if error is None:
        # Not the words of a replica. A proxy in between answers 503 also for a connection that it
        # lost after it had passed the request on.
        return _lost(response.url, BrokenStream(f"{status} without an error body"))
    if status in (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS):
        retry_after = response.headers.get("retry-after", "")
        return NotAccepted(
            f"answered {status}: {error.message}",
            retry_after_s=int(retry_after) if retry_after.isdecimal() else None,
            busy=True,
        )
    if status in _NOT_THE_CLIENTS:
        return NotAccepted(f"answered {status}: {error.message}")
    if error.param == "protocol_version":
        # No fault of the client: this replica is of another release.
        return NotAccepted(f"speaks another version: {error.message}")
    if status == httpx.codes.CONFLICT:
        return MissingFeatures(error.missing_hashes)
    return _error(response.url, status, error.message, error.param)


async def _read_error(content: _Body) -> bytes:
    """Read the body of an error as far as it comes, in a bounded time and space."""
    body = bytearray()
    with suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(_ERROR_TIMEOUT_S):
            async for chunk in content.chunks():
                body += chunk
                if len(body) > _MAX_ERROR_BYTES:
                    break
    return bytes(body)


def _error(url: httpx.URL, status: int, message: str, param: str | None) -> TandemError:
    """The error to pass on for one that a replica answered with."""
    if 400 <= status < 500 and status != httpx.codes.REQUEST_HEADER_FIELDS_TOO_LARGE:
        # A status without a class of its own is to be read as 400, says HTTP.
        return _CLIENT_ERRORS.get(status, InvalidRequest)(message, param=param)
    logger.error("%s answered %d: %s", _origin(url), status, message)
    return InternalError("The generate service failed to answer this request")


def _lost(url: httpx.URL, error: Exception) -> ReplicaFailed:
    logger.warning("%s was lost with a request: %s", _origin(url), _describe(error))
    return ReplicaFailed("The generate service was lost while it had this request")


_SILENT_ERRNOS: Final = frozenset(
    {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ETIMEDOUT}
)


def _is_silence(error: httpx.HTTPError) -> bool:
    """Whether it is the network that reports the error, in place of a replica's host."""
    if isinstance(error, httpx.TimeoutException):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _SILENT_ERRNOS:
            return True
        cause = cause.__cause__
    return False


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def without_userinfo(url: str) -> str:
    """The part of a replica's URL that may be shown."""
    return str(_address(url, "")[0])


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _address(url: str, path: str) -> tuple[httpx.URL, httpx.Auth | None]:
    """Split the credentials off, as httpx logs the URLs that it requests."""
    parsed = httpx.URL(url)
    auth = httpx.BasicAuth(parsed.username, parsed.password) if parsed.userinfo else None
    return httpx.URL(str(parsed.copy_with(userinfo=b"")).rstrip("/") + path), auth
