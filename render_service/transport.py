"""The HTTP between the tiers: probes of a replica, and the stream of one answer.

What matters of a failure is whether the replica may have begun the request, for then nobody else
may get it:

- `NotAccepted`: it has not. There was no connection, the replica has not asked for the body, or it
  answered 503 or 429.
- `ReplicaFailed`: it may have. The connection was lost after the body was on its way, or what came
  back is no answer of a replica.
- any other `TandemError`: it has answered, and this is the answer.

A stopped process takes no request, but its kernel does, connection, head, body and all; when the
process goes on, it finds them. Only a body that was never sent is certainly not begun there, also
later. A server of ASGI asks for the body (`Expect: 100-continue`) when its application first wants
to read it, so asking also means that the process runs.

An idle connection is closed after ``keepalive_expiry_s``, long before the replica closes it
(`MIN_SERVER_KEEP_ALIVE_S`), so that a request seldom meets one that is just being closed.
"""

import errno
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self

import httpx
import msgspec

from render_service.connection_pool import ConnectionPool
from render_service.http_connection import (
    ConnectFailed,
    ConnectionLost,
    HttpConnection,
    Origin,
    ResponseHead,
)
from render_service.patience import patient_timeout
from render_service.replica_answer import (
    Answer,
    NotAccepted,
    lost,
    parse_error,
    refusal,
)
from shared_protocol.answer import FRAMES_CONTENT_TYPE, TokenDelta
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE
from shared_protocol.held_items import HELD_ITEMS_HEADER, decode_names
from shared_protocol.serving_info import INFO_PATH, ServingInfo
from shared_protocol.tensors import Buffer

GENERATE_PATH: Final = "/inference/v1/generate"

MIN_SERVER_KEEP_ALIVE_S: Final = 60
"""How long a replica must at least keep an idle connection."""

PIECE_BYTES: Final = 1 << 18
"""A body of 10 MB in one piece would hold up everything else for as long as it is copied."""

MAX_INFO_BYTES: Final = 1 << 24
"""Of what a replica says of itself, each of its adapters among it."""

_PORTS: Final = {"http": 80, "https": 443}


class NotReady(Exception):
    """What a probe found instead of a replica that takes requests."""


class NoAnswer(NotReady):
    """Nothing at all came back, not even from the replica's host."""


class Exchange:
    """One request at a replica, as others see it.

    Attributes:
        begun: whether the replica may have begun it.
        over: whether somebody has ended it from outside.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.begun = False
        self.over = False

    def cut(self) -> None:
        """End it: it is `NotAccepted` if it was not begun, and `ReplicaFailed` if it was."""
        self.over = True
        self.connection.abort()


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """
    Attributes:
        read_timeout_s: the longest silence in an answer; None waits forever, as a request may
            be queued for any time.
        send_timeout_s: how long a replica that has asked for a request may stop reading it.
        probe_timeout_s: how long a replica may take to answer a probe.
        continue_timeout_s: after which the body is sent to a replica that has not asked for it,
            as HTTP has it: there are servers that never ask. Longer than it takes to find out that
            a replica is silent, or nothing is known of it.
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
        self._connections = ConnectionPool(
            max_idle=self._settings.max_idle_connections,
            expiry_s=self._settings.keepalive_expiry_s,
        )

    @property
    def probe_timeout_s(self) -> float:
        return self._settings.probe_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, which ends the answers that are still streaming."""
        await self._connections.aclose()

    async def probe(self, url: str) -> ServingInfo:
        """Ask whether the replica takes requests, and what it serves.

        Raises:
            NoAnswer: if it is silent.
            NotReady: if it does not say that it takes requests, with its reason.
        """
        timeout_s = self._settings.probe_timeout_s
        try:
            async with patient_timeout(timeout_s):
                status, content = await self._get(httpx.URL(url), INFO_PATH)
        except TimeoutError as error:
            raise NoAnswer(f"no answer on {INFO_PATH} within {timeout_s:g} s") from error
        except (ConnectFailed, ConnectionLost) as error:
            kind = NoAnswer if _is_silence(error.__cause__) else NotReady
            raise kind(f"no answer on {INFO_PATH} ({error})") from error
        if status != httpx.codes.OK:
            answer = parse_error(content)
            message = f": {answer.message}" if answer else ""
            raise NotReady(f"{INFO_PATH} answered {status}{message}")
        try:
            return msgspec.json.decode(content, type=ServingInfo)
        except msgspec.DecodeError as error:
            raise NotReady(f"its {INFO_PATH} is not understood: {error}") from error

    async def _get(self, url: httpx.URL, path: str) -> tuple[int, bytes]:
        # On a connection of its own: a probe asks whether the replica still takes them.
        connection = HttpConnection(self._origin(url))
        try:
            await connection.open(self._settings.connect_timeout_s)
            connection.send_head(
                _request_head("GET", _without_userinfo(url, path), self._authorization(url))
            )
            head = await connection.head()
            body = bytearray()
            while len(body) <= MAX_INFO_BYTES and (chunk := await connection.read()):
                body += chunk
            return head.status, bytes(body)
        finally:
            connection.abort()

    def _authorization(self, url: httpx.URL) -> dict[str, str]:
        if url.userinfo:
            pair = f"{url.username}:{url.password}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
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
        parsed = httpx.URL(url)
        replica = _origin_name(parsed)
        running = set() if exchanges is None else exchanges
        exchange = Exchange(self._connections.take(self._origin(parsed)))
        running.add(exchange)
        try:
            sent = {"Content-Type": content_type, **(headers or {})}
            head = await self._post(exchange, parsed, body, sent)
            if head.status != httpx.codes.OK:
                raise await refusal(replica, exchange.connection, head)
            if (names := head.headers.get(HELD_ITEMS_HEADER)) is not None:
                on_named(decode_names(names))
            answer = Answer(
                replica, exchange.connection, head, read_timeout_s=self._settings.read_timeout_s
            )
            async with aclosing(answer.deltas()) as deltas:
                yield deltas
            await answer.read_end()
        finally:
            running.discard(exchange)
            self._connections.give_back(exchange.connection)

    def _origin(self, url: httpx.URL) -> Origin:
        return Origin(
            url.raw_host.decode("ascii"),
            url.port or _PORTS[url.scheme],
            self._ssl_context if url.scheme == "https" else None,
        )

    async def _post(
        self, exchange: Exchange, url: httpx.URL, body: Sequence[Buffer], headers: dict[str, str]
    ) -> ResponseHead:
        head = _request_head(
            "POST",
            _without_userinfo(url, GENERATE_PATH),
            {
                "Accept": FRAMES_CONTENT_TYPE,
                "Accept-Encoding": "identity",
                "Expect": "100-continue",
                "Content-Length": str(sum(memoryview(part).nbytes for part in body)),
                **self._authorization(url),
                **headers,
            },
        )
        try:
            return await self._exchange(exchange, head, body)
        except ConnectFailed as error:
            raise NotAccepted(f"could not connect ({error})") from error
        except ConnectionLost as error:
            if not exchange.begun:
                raise NotAccepted(f"has not asked for the body ({error})") from error
            raise lost(_origin_name(url), error) from error

    async def _exchange(
        self, exchange: Exchange, head: bytes, body: Sequence[Buffer]
    ) -> ResponseHead:
        settings, connection = self._settings, exchange.connection
        kept = connection.opened
        if not kept:
            await connection.open(settings.connect_timeout_s)
        try:
            connection.send_head(head)
            asked = await connection.wait_until_asked(settings.continue_timeout_s)
        except ConnectionLost:
            if not kept or exchange.over:
                raise
            # The replica had closed it, which is seen only now: it says nothing of the replica.
            self._connections.give_back(connection)
            exchange.connection = self._connections.take(connection.origin, kept=False)
            return await self._exchange(exchange, head, body)
        if asked:
            exchange.begun = True
            await connection.send_body(_pieces(body), settings.send_timeout_s)
        return await connection.head(settings.read_timeout_s)


def _pieces(body: Sequence[Buffer]) -> Iterator[bytes]:
    """Cut `body` up: what is under way is copied, and goes out between other streams' turns."""
    for part in body:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield bytes(view[start : start + PIECE_BYTES])


def _request_head(method: str, url: httpx.URL, headers: Mapping[str, str]) -> bytes:
    """
    Raises:
        ValueError: if a header's value would be more than one line.
    """
    lines = [b"%b %b HTTP/1.1" % (method.encode(), url.raw_path), b"Host: %b" % url.netloc]
    for name, value in headers.items():
        if not value.isprintable():
            raise ValueError(f"the header {name} is not one line of text")
        lines.append(f"{name}: {value}".encode())
    return b"\r\n".join([*lines, b"", b""])


_SILENT_ERRNOS: Final = frozenset(
    {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ETIMEDOUT}
)


def _is_silence(cause: BaseException | None) -> bool:
    """Whether it is the network that reports the error, in place of a replica's host."""
    if isinstance(cause, TimeoutError):
        return True
    return isinstance(cause, OSError) and cause.errno in _SILENT_ERRNOS


def without_userinfo(url: str) -> str:
    """The part of a replica's URL that may be shown."""
    return str(_without_userinfo(httpx.URL(url), ""))


def _without_userinfo(url: httpx.URL, path: str) -> httpx.URL:
    return httpx.URL(str(url.copy_with(userinfo=b"")).rstrip("/") + path)


def _origin_name(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
