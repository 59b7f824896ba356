"""Reading what the engine core sends."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
import zmq.asyncio

from generate_service.vllm_output_socket import OutputSocket

pytestmark = pytest.mark.anyio

MESSAGES = 5_000


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


class Pipe:
    """As between vLLM's processes: one end pushes, and the other is made for asyncio."""

    def __init__(self, folder: str) -> None:
        self.context = zmq.Context()
        self.push = self.context.socket(zmq.PUSH)
        self.push.bind(f"ipc://{folder}/pipe")
        self.pull: zmq.asyncio.Socket = zmq.asyncio.Context(self.context).socket(zmq.PULL)
        self.pull.connect(f"ipc://{folder}/pipe")


@pytest.fixture
def pipe(tmp_path: Any) -> Iterator[Pipe]:
    pipe = Pipe(str(tmp_path))
    yield pipe
    pipe.push.close(linger=0)
    pipe.pull.close(linger=0)
    pipe.context.term()


def content(frames: Any) -> list[bytes]:
    return [bytes(frame.buffer) for frame in frames]


async def test_no_message_is_missed(pipe: Pipe) -> None:
    def send() -> None:
        pause = threading.Event()
        for number in range(MESSAGES):
            pipe.push.send_multipart([b"head", str(number).encode()])
            if number % 7 == 0:
                # So that the reader finds the socket empty again and again.
                pause.wait(0.0002)

    sender = threading.Thread(target=send)
    reader = OutputSocket(pipe.pull)
    sender.start()
    async with asyncio.timeout(60):
        for number in range(MESSAGES):
            frames = content(await reader.recv_multipart(copy=False))
            assert frames == [b"head", str(number).encode()]
    sender.join()
    await end(reader)


async def test_what_is_there_before_is_read(pipe: Pipe) -> None:
    pipe.push.send(b"early")
    await asyncio.sleep(0.1)
    reader = OutputSocket(pipe.pull)
    async with asyncio.timeout(5):
        assert content(await reader.recv_multipart(copy=False)) == [b"early"]
    await end(reader)


async def test_an_empty_socket_costs_nothing(pipe: Pipe) -> None:
    reader = OutputSocket(pipe.pull)
    pipe.push.send(b"one")
    await reader.recv_multipart()
    waiting = asyncio.create_task(reader.recv_multipart())
    await asyncio.sleep(0.05)
    woken = 0
    original = reader._arrived.set

    def count() -> None:
        nonlocal woken
        woken += 1
        original()

    reader._arrived.set = count  # type: ignore[method-assign]
    asyncio.get_running_loop().add_reader(reader._descriptor, count)
    await asyncio.sleep(0.2)
    assert woken <= 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def end(reader: OutputSocket) -> None:
    waiting = asyncio.create_task(reader.recv_multipart())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
