"""vLLM's HTTP client for media, which goes only where it may, and waits only so long.

Addresses are looked at when a socket is made for them, after names were resolved: what a name says
to another question is of no matter. That holds for every hop of a redirect.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver
from vllm.connections import (
    HTTPConnection,
    HTTPResponseSizeExceededError,
    MediaDownloadSizeExceededError,
)

from render_service.media_addresses import AddressRule
from render_service.media_rules import MediaRules
from shared_protocol.errors import InternalError, InvalidRequest, Unprocessable

_THROUGH_PROXY: Final = ContextVar("_THROUGH_PROXY", default=False)
"""Whether the connection that this task opens is one to the environment's proxy."""

_TRY_AGAIN: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})

_ADDRESS_REFUSED: Final = (
    "Media cannot be fetched from that host: its address is private or reserved."
)


class _AddressRefused(OSError):
    """An address is not allowed; aiohttp goes on to a host's other ones, if there are any."""


class MediaSessions:
    """Sessions of aiohttp whose sockets lead to allowed addresses only.

    Args:
        resolver: makes what resolves names, in place of aiohttp's.
    """

    def __init__(
        self, rule: AddressRule, resolver: Callable[[], AbstractResolver] | None = None
    ) -> None:
        self._rule = rule
        self._resolver = resolver
        self._kept: aiohttp.ClientSession | None = None

    def kept(self) -> aiohttp.ClientSession:
        """The session of the service's own event loop, with its open connections."""
        if self._kept is None or self._kept.closed:
            self._kept = self.new()
        return self._kept

    def new(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            socket_factory=self._socket, resolver=self._resolver and self._resolver()
        )
        return aiohttp.ClientSession(connector=connector, trust_env=True)

    async def close(self) -> None:
        if self._kept is not None:
            await self._kept.close()

    async def check_name(self, host: str) -> None:
        """Look at a host that a proxy will be asked for, as far as this host knows its addresses.

        Raises:
            InvalidRequest: if one of them is not allowed.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:
            return
        if not all(self._rule.allows(str(address[0])) for *_, address in found):
            raise InvalidRequest(_ADDRESS_REFUSED)

    def _socket(self, info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        if not _THROUGH_PROXY.get() and not self._rule.allows(address[0]):
            raise _AddressRefused(_ADDRESS_REFUSED)
        return socket.socket(family=family, type=kind, proto=protocol)


class GuardedConnection(HTTPConnection):
    """What a connector of vLLM fetches with.

    Args:
        allowed_domains: hosts of every hop; empty for all.
    """

    def __init__(
        self, rules: MediaRules, sessions: MediaSessions, allowed_domains: Iterable[str]
    ) -> None:
        super().__init__()
        self._rules = rules
        self._sessions = sessions
        self._allowed_domains = frozenset(allowed_domains)

    async def get_async_client(self) -> aiohttp.ClientSession:
        return self._async_client or self._sessions.kept()

    async def get_async_response(
        self,
        url: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's
        extra_headers: Mapping[str, str] | None = None,
        allow_redirects: bool = True,
    ) -> Any:
        client = await self.get_async_client()
        return client.get(
            url,
            headers=self._headers(**(extra_headers or {})),
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=allow_redirects,
            # aiohttp counts the redirect that is one too many.
            max_redirects=self._rules.max_redirects + 1,
            middlewares=(self._checked_hop,),
        )

    async def async_get_bytes(
        self, url: str, *, max_bytes: int | None = None, **options: Any
    ) -> bytes:
        """Fetch `url` as vLLM does, trying again where it does.

        Raises:
            InvalidRequest: if it, or where it leads to, may not be fetched from.
            Unprocessable: if it gives nothing, too much, or not in time.
            InternalError: if its server failed, as vLLM calls it.
        """
        limit = min(self._rules.max_bytes, max_bytes or self._rules.max_bytes)
        try:
            async with asyncio.timeout(self._rules.fetch_timeout_s):
                content: bytes = await super().async_get_bytes(url, max_bytes=limit, **options)
                return content
        except TimeoutError as error:
            raise Unprocessable("The media did not arrive in time.") from error
        except (HTTPResponseSizeExceededError, MediaDownloadSizeExceededError) as error:
            raise Unprocessable(
                f"The media have more than the {error.max_bytes} bytes that are allowed."
            ) from error
        except aiohttp.ClientError as error:
            raise _answer_to(error) from error

    def get_bytes(self, url: str, **options: Any) -> bytes:
        # In a thread of its own: the caller's may have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._fetched_alone(url, options)).result()

    def _fetched_alone(self, url: str, options: dict[str, Any]) -> Coroutine[Any, Any, bytes]:
        connection = GuardedConnection(self._rules, self._sessions, self._allowed_domains)

        async def fetched() -> bytes:
            async with self._sessions.new() as session:
                connection._async_client = session
                return await connection.async_get_bytes(url, **options)

        return fetched()

    async def _checked_hop(
        self,
        request: aiohttp.ClientRequest,
        send: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
    ) -> aiohttp.ClientResponse:
        """aiohttp calls this for a request, and for each that a redirect leads to."""
        url = request.url
        allowed = self._allowed_domains
        if allowed and allowed.isdisjoint({url.raw_host, url.host_subcomponent}):
            raise InvalidRequest("The media's URL leads to a domain that is not allowed.")
        _THROUGH_PROXY.set(request.proxy is not None)
        if request.proxy is not None:
            await self._sessions.check_name(url.raw_host or "")
        try:
            return await send(request)
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, _AddressRefused):
                raise InvalidRequest(_ADDRESS_REFUSED) from error
            raise


def _answer_to(error: aiohttp.ClientError) -> Exception:
    """Transient failures are 500, as in vLLM; the others are of the URL that the client chose."""
    if isinstance(error, aiohttp.TooManyRedirects):
        return Unprocessable("The media's URL redirects too often.")
    if isinstance(error, aiohttp.ClientResponseError):
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status in _TRY_AGAIN:
            return InternalError(f"The server of the media answered with status {error.status}.")
        return Unprocessable(f"The server of the media answered with status {error.status}.")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Unprocessable("The certificate of the media's server is not trusted here.")
    if isinstance(error, aiohttp.ClientConnectionError):
        return InternalError("The server of the media could not be reached.")
    if isinstance(error, aiohttp.InvalidURL):
        return Unprocessable("The media's URL is not valid.")
    return Unprocessable("What the server of the media sent is not a complete answer of HTTP.")
