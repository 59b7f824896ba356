"""The socket by which vLLM's engine core sends what its steps gave, read at a lower price.

pyzmq's asyncio makes a future of each message, and looks at the socket's events before and after:
four tenths of what the front end did for each token of a single stream.
"""

import asyncio
from typing import Any

import zmq
from vllm.v1.engine.core_client import AsyncMPClient


class OutputSocket:
    """A socket that is only read, by one task of the running event loop.

    ZeroMQ's descriptor can be read until the socket has been found empty, so no message is missed
    that comes between the two lines of `recv_multipart` that look and wait.
    """

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        """
        Args:
            socket: stays its owner's, who closes it.
        """
        self._socket: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._descriptor: int = self._socket.fileno()
        self._loop.add_reader(self._descriptor, self._arrived.set)

    async def recv_multipart(self, *, copy: bool = True) -> Any:
        """Return the frames of the next message; being cancelled ends the reading for good."""
        while True:
            self._arrived.clear()
            try:
                return self._socket.recv_multipart(zmq.NOBLOCK, copy=copy)
            except zmq.Again:
                await self._until_readable()

    async def _until_readable(self) -> None:
        try:
            await self._arrived.wait()
        except asyncio.CancelledError:
            self._loop.remove_reader(self._descriptor)
            raise


def start_reading(client: AsyncMPClient) -> None:
    """Start the task of `client` that reads outputs, on an `OutputSocket`.

    Raises:
        RuntimeError: if it has been started before.
    """
    resources = client.resources
    if resources.output_queue_task is not None:
        raise RuntimeError("The engine's outputs are being read already")
    own = resources.output_socket
    resources.output_socket = OutputSocket(own)
    try:
        client._ensure_output_queue_task()
    finally:
        # At its end vLLM closes the one that it knows.
        resources.output_socket = own
