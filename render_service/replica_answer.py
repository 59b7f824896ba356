"""What a replica answers: its deltas, or its error as the one to raise on this tier."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

import httpx
import msgspec

from render_service.http_connection import ConnectionLost, HttpConnection, ResponseHead
from shared_protocol.answer import FRAMES_CONTENT_TYPE, Failure, TokenDelta
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

logger = logging.getLogger(__name__)

TURN_S: Final = 0.002
"""How long one stream is worked on while others wait: where replicas are faster than this process,
a read brings hundreds of deltas, and each of 32 streams would hold up probes for tens of ms.
"""

_MAX_ERROR_BYTES: Final = 1 << 20
_ERROR_TIMEOUT_S: Final = 5.0
_END_TIMEOUT_S: Final = 0.2

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


class Answer:
    """The deltas of one answer, which come on `connection`."""

    def __init__(
        self,
        replica: str,
        connection: HttpConnection,
        head: ResponseHead,
        *,
        read_timeout_s: float | None,
    ) -> None:
        """
        Args:
            replica: what to call it in the log.
        """
        self._replica = replica
        self._connection = connection
        self._content_type = head.headers.get("content-type", "")
        self._read_timeout_s = read_timeout_s
        self._complete = False

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        """Yield them, the last one finished.

        Raises:
            ReplicaFailed: if the answer breaks off, or is none.
            TandemError: if it ends with a failure.
        """
        try:
            if self._content_type != FRAMES_CONTENT_TYPE:
                raise BrokenStream(f"an answer of type {self._content_type!r}")
            reader, turn = FrameReader(), _Turn()
            while chunk := await self._connection.read(self._read_timeout_s):
                for frame in reader.feed(chunk):
                    if isinstance(frame, Failure):
                        raise _error(self._replica, frame.status, frame.message, frame.param)
                    self._complete = frame.finished
                    yield frame
                    if self._complete:
                        return
                    if turn.is_over():
                        await asyncio.sleep(0)
            raise BrokenStream("the answer has no last delta")
        except (ConnectionLost, BrokenStream) as error:
            raise lost(self._replica, error) from error

    async def read_end(self) -> None:
        """Read what is left after the last delta, so that the connection can be used again."""
        if self._complete:
            with suppress(ConnectionLost):
                await self._connection.read(_END_TIMEOUT_S)


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


class ErrorObject(msgspec.Struct):
    message: str
    param: str | None = None
    missing_hashes: list[str] = []


class _ErrorBody(msgspec.Struct):
    error: ErrorObject


def parse_error(body: bytes) -> ErrorObject | None:
    """Read the body of an error of a replica; None if it is not one."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return None


async def refusal(replica: str, connection: HttpConnection, head: ResponseHead) -> Exception:
    """What to raise for an answer that is not 200."""
    status = head.status
    error = parse_error(await _read_error(connection))
    if error is None:
        # Not the words of a replica. A proxy in between answers 503 also for a connection that it
        # lost after it had passed the request on.
        return lost(replica, BrokenStream(f"{status} without an error body"))
    if status in (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS):
        retry_after = head.headers.get("retry-after", "")
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
    return _error(replica, status, error.message, error.param)


async def _read_error(connection: HttpConnection) -> bytes:
    """Read the body of an error as far as it comes, in a bounded time and space."""
    body = bytearray()
    with suppress(TimeoutError, ConnectionLost):
        async with asyncio.timeout(_ERROR_TIMEOUT_S):
            while len(body) <= _MAX_ERROR_BYTES and (chunk := await connection.read()):
                body += chunk
    return bytes(body)


def _error(replica: str, status: int, message: str, param: str | None) -> TandemError:
    """The error to pass on for one that a replica answered with."""
    if 400 <= status < 500 and status != httpx.codes.REQUEST_HEADER_FIELDS_TOO_LARGE:
        # A status without a class of its own is to be read as 400, says HTTP.
        return _CLIENT_ERRORS.get(status, InvalidRequest)(message, param=param)
    logger.error("%s answered %d: %s", replica, status, message)
    return InternalError("The generate service failed to answer this request")


def lost(replica: str, error: Exception) -> ReplicaFailed:
    """What to raise where a replica may have begun the request and `error` ended it."""
    logger.warning("%s was lost with a request: %s: %s", replica, type(error).__name__, error)
    return ReplicaFailed("The generate service was lost while it had this request")
