"""A generate replica that behaves as a test tells it to: a real server on a real socket."""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import msgspec
import uvicorn

from render_service.item_names import ItemNames
from render_service.outgoing_request import Shipment
from render_service.transport import GENERATE_PATH, MIN_SERVER_KEEP_ALIVE_S
from shared_protocol.answer import FRAMES_CONTENT_TYPE, AnswerFrame, TokenDelta
from shared_protocol.frames import encode_frame
from shared_protocol.serving_info import INFO_PATH, ServingInfo

INFO = ServingInfo(
    model="tiny",
    served_model_names=["tiny"],
    architecture="LlamaForCausalLM",
    vocab_size=512,
    hidden_size=64,
    max_model_len=1024,
    dtype="float32",
    enable_prompt_embeds=True,
    max_logprobs=20,
    max_num_seqs=8,
    runner_type="generate",
    supported_tasks=["generate"],
    generation_config="auto",
    structured_outputs_backend="auto",
    reasoning_parser="",
    vllm_version="0.32.0",
)

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loading the usual ones takes longer than most tests."""

FIRST = TokenDelta(token_ids=[1])
LAST = TokenDelta(token_ids=[2], finish_reason="stop")


@dataclass(frozen=True)
class PlainRequest:
    """One without items, for a `ReplicaPool`."""

    body: bytes

    def shipment(self, held: object) -> Shipment:
        return Shipment([self.body], (), ItemNames())


@dataclass(frozen=True)
class ReceivedRequest:
    body: bytes
    headers: dict[str, str]
    client_port: int


class Exchange:
    """One request at the replica, and the means to answer it or to break."""

    def __init__(self, send: Any, transport: asyncio.Transport, client_left: asyncio.Event) -> None:
        self._send = send
        self._transport = transport
        self.client_left = client_left

    async def start(
        self,
        status: int = 200,
        content_type: str = FRAMES_CONTENT_TYPE,
        headers: dict[str, str] | None = None,
    ) -> None:
        named = {"content-type": content_type, **(headers or {})}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            }
        )

    async def body(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def frames(self, frames: Sequence[AnswerFrame], delay_s: float = 0.0) -> None:
        await self.start()
        for frame in frames:
            await self.body(encode_frame(frame))
            await asyncio.sleep(delay_s)

    def write_raw(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        reset_connection(self._transport)


Behaviour: TypeAlias = Callable[[Exchange], Awaitable[None]]


def answer(*frames: AnswerFrame, delay_s: float = 0.0) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.frames(frames, delay_s)
        await exchange.body(b"", more=False)

    return behave


def answer_bytes(data: bytes, content_type: str = FRAMES_CONTENT_TYPE) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.start(content_type=content_type)
        await exchange.body(data, more=False)

    return behave


def answer_bytewise(*frames: AnswerFrame) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.start()
        for byte in b"".join(encode_frame(frame) for frame in frames):
            await exchange.body(bytes([byte]))
            await asyncio.sleep(0)
        await exchange.body(b"", more=False)

    return behave


def refuse(status: int, message: str, *, retry_after: str | None = None, **more: Any) -> Behaviour:
    """Answer with an error body as a replica writes it."""
    error = {"message": message, "type": "AnyError", "param": None, "code": status} | more
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return answer_error(status, msgspec.json.encode({"error": error}), headers=headers)


def answer_error(
    status: int,
    body: bytes,
    *,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.start(status, content_type, headers)
        await exchange.body(body, more=False)

    return behave


def reset_after(*frames: AnswerFrame) -> Behaviour:
    """Answer with `frames`, then reset the connection; without any, before the status."""

    async def behave(exchange: Exchange) -> None:
        if frames:
            await exchange.frames(frames)
            await asyncio.sleep(0.05)
        exchange.reset()

    return behave


def close_after(*frames: AnswerFrame) -> Behaviour:
    """Answer with `frames`, then close the connection; without any, before the status."""

    async def behave(exchange: Exchange) -> None:
        if frames:
            await exchange.frames(frames)
        exchange.close()

    return behave


def write_raw(data: bytes) -> Behaviour:
    """Write `data` in place of an HTTP answer."""

    async def behave(exchange: Exchange) -> None:
        exchange.write_raw(data)
        exchange.close()

    return behave


def hang_after(*frames: AnswerFrame) -> Behaviour:
    """Answer with `frames`, then be silent until the client leaves; without any, no status."""

    async def behave(exchange: Exchange) -> None:
        if frames:
            await exchange.frames(frames)
        await exchange.client_left.wait()

    return behave


class FakeGenerate:
    """
    Attributes:
        behaviour: what it does with requests from now on.
        requests: those that it has received in full.
        disconnects: how many clients have left before the end of their answer.
        not_ready: what it answers to probes instead of 200.
        probe_delay_s: how long the answer to a probe takes.
        probes: how often it was probed.
    """

    def __init__(self, port: int = 0) -> None:
        """
        Args:
            port: to listen on; 0 takes a free one.
        """
        self.behaviour: Behaviour = answer(FIRST, LAST)
        self.info: ServingInfo | bytes = INFO
        self.not_ready: str | None = None
        self.probe_delay_s = 0.0
        self.requests: list[ReceivedRequest] = []
        self.disconnects = 0
        self.probes = 0
        with socket.create_server(("127.0.0.1", port)) as listener:
            self.port: int = listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.kill()

    def start(self) -> None:
        """Listen on the port of this replica, again if it was killed."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                interface="asgi3",
                proxy_headers=False,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=MIN_SERVER_KEEP_ALIVE_S,
            )
        )
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        # asyncio does this only for sockets that it creates itself; without it the frames of an
        # answer are 40 ms apart.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(listener),))
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "the fake replica does not start"
            time.sleep(0.005)

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.create_task(self._server.serve([listener]))
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        # uvicorn hears of a connection some turns of the loop after it was accepted.
        for _ in range(5):
            await asyncio.sleep(0)
            self._reset_connections()

    def freeze(self) -> threading.Event:
        """Do nothing at all, as a stopped process does, until the event is set."""
        thawed = threading.Event()
        self._loop.call_soon_threadsafe(thawed.wait)
        return thawed

    def kill(self) -> None:
        """End as a killed process does: nobody listens, and every connection is reset."""
        self._loop.call_soon_threadsafe(self._cut_off)
        self._thread.join()

    def _cut_off(self) -> None:
        # Not uvicorn's own way to end, which looks for the wish to end every 0.1 s only.
        self._serving.cancel()
        for server in self._server.servers:
            server.close()
        self._reset_connections()

    def _reset_connections(self) -> None:
        for protocol in list(self._server.server_state.connections):
            reset_connection(protocol.transport)

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def close_connections(self) -> None:
        for protocol in list(self._server.server_state.connections):
            self._loop.call_soon_threadsafe(protocol.transport.close)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == INFO_PATH:
            await self._answer_probe(Exchange(send, self._transport(scope), asyncio.Event()))
        else:
            assert scope["path"] == GENERATE_PATH
            await self._answer_generate(scope, receive, send)

    async def _answer_probe(self, exchange: Exchange) -> None:
        self.probes += 1
        info = self.info if isinstance(self.info, bytes) else msgspec.json.encode(self.info)
        ready = answer_bytes(info, "application/json")
        behave = ready if self.not_ready is None else refuse(503, self.not_ready)
        await asyncio.sleep(self.probe_delay_s)
        await behave(exchange)

    async def _answer_generate(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            body += message["body"]
            if not message["more_body"]:
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append(ReceivedRequest(body, headers, scope["client"][1]))
        client_left = asyncio.Event()
        listener = asyncio.create_task(self._note_disconnect(receive, client_left))
        try:
            await self.behaviour(Exchange(send, self._transport(scope), client_left))
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    async def _note_disconnect(self, receive: Any, client_left: asyncio.Event) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnects += 1
        client_left.set()

    def _transport(self, scope: Any) -> asyncio.Transport:
        connections: Any = self._server.server_state.connections
        (transport,) = [c.transport for c in connections if c.client == tuple(scope["client"])]
        return transport  # type: ignore[no-any-return]


def reset_connection(transport: asyncio.Transport) -> None:
    linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


async def eventually(condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        await asyncio.sleep(0.005)
