"""A network between two services that can be made to fail."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_READ_BYTES = 1 << 16


class FaultyLink:
    """A TCP proxy in a thread of its own; as a context manager it listens inside.

    Attributes:
        url: where it listens.
        delay_s: added to each read, both ways.
        garbles: whether what the server says arrives as something else.
    """

    def __init__(self, target_url: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.delay_s = 0.0
        self.garbles = False
        self._port = port
        self._target_port = int(target_url.rpartition(":")[2])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._drops = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def heal(self) -> None:
        """Let everything through again; what was dropped stays lost, with its connections."""
        self.delay_s, self.garbles = 0.0, False
        if self._drops:
            self._drops = False
            self.reset()

    def drop(self) -> None:
        """Lose everything from now on, without a word to either side."""
        self._drops = True

    def close_all(self) -> None:
        """End every connection as a server does that is done."""
        self._loop.call_soon_threadsafe(self._each, asyncio.StreamWriter.close)

    def reset(self) -> None:
        self._loop.call_soon_threadsafe(self._each, _reset)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    def _each(self, end: Callable[[asyncio.StreamWriter], None]) -> None:
        for writer in list(self._writers):
            end(writer)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _close(self) -> None:
        self._server.close()
        self._each(_reset)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
            ends.add(back)
            self._writers.add(back)
            await asyncio.gather(
                self._carry(reader, back, spoilt=False), self._carry(there, writer, spoilt=True)
            )
        except OSError:
            _reset(writer)
        finally:
            for end in ends:
                self._writers.discard(end)
                end.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, spoilt: bool
    ) -> None:
        while data := await reader.read(_READ_BYTES):
            if self._drops:
                continue
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if spoilt and self.garbles:
                data = bytes(byte ^ 0x2A for byte in data)
            writer.write(data)
            await writer.drain()
        if not self._drops:
            with contextlib.suppress(OSError):
                writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
