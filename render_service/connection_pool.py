"""The connections to replicas: those that are used, and those that are kept for later."""

import asyncio

from render_service.http_connection import HttpConnection, Origin


class ConnectionPool:
    """Keeps what a later request can use, and closes the rest.

    There is no bound on those that are used: nobody is to wait behind the streams of others.
    """

    def __init__(self, *, max_idle: int, expiry_s: float) -> None:
        """
        Args:
            max_idle: connections that are kept.
            expiry_s: how long each of them is.
        """
        self._max_idle = max_idle
        self._expiry_s = expiry_s
        self._used: set[HttpConnection] = set()
        self._idle: dict[HttpConnection, asyncio.TimerHandle] = {}
        self._closing: set[HttpConnection] = set()

    def __len__(self) -> int:
        return len(self._used) + len(self._idle)

    def take(self, origin: Origin, *, kept: bool = True) -> HttpConnection:
        """Return a connection to `origin`, which is to be given back whatever happens.

        Args:
            kept: whether it may be one that was used before, of which the last comes first. Others
                are still to be opened.
        """
        connection = (self._take_kept(origin) if kept else None) or HttpConnection(origin)
        self._used.add(connection)
        return connection

    def _take_kept(self, origin: Origin) -> HttpConnection | None:
        for connection in reversed(self._idle):
            if connection.origin == origin and connection.reusable:
                self._forget(connection)
                connection.on_lost = lambda: None
                return connection
        return None

    def give_back(self, connection: HttpConnection) -> None:
        """Keep the connection, or close it if it is in the middle of something."""
        self._used.discard(connection)
        if not connection.reusable or len(self._idle) >= self._max_idle:
            self._close(connection)
            return
        connection.on_lost = lambda: self._forget(connection)
        self._idle[connection] = asyncio.get_running_loop().call_later(
            self._expiry_s, connection.abort
        )

    def _forget(self, connection: HttpConnection) -> None:
        if (expiry := self._idle.pop(connection, None)) is not None:
            expiry.cancel()

    async def aclose(self) -> None:
        """Close all connections, which ends what they are used for."""
        for connection in [*self._used, *self._idle]:
            self._close(connection)
        while self._closing:
            await asyncio.sleep(0)

    def _close(self, connection: HttpConnection) -> None:
        if connection.opened:
            self._closing.add(connection)
            connection.on_lost = lambda: self._closing.discard(connection)
        connection.abort()
