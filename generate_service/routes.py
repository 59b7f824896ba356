"""``POST /inference/v1/generate`` as plain ASGI: the way from a body to a stream of deltas.

Plain, because a framework's response that waits for the first output, as the right status
demands, does not see the client leave meanwhile; and each delta is one message, not five calls.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from generate_service import json_answer
from generate_service.admission import ModelLimits, admit
from generate_service.held_items import HeldItems, Recall
from generate_service.item_identity import item_names, with_content_hashes
from generate_service.item_values import check_values
from generate_service.merged_deltas import merged
from generate_service.request_body import ClientDisconnect, decode_body, read_body
from generate_service.running_requests import RunningRequests
from generate_service.vllm_request import EngineRequest, decode_request
from shared_protocol.answer import FRAMES_CONTENT_TYPE, Failure, TokenDelta
from shared_protocol.errors import InternalError, TandemError, Unavailable
from shared_protocol.frames import encode_frame
from shared_protocol.held_items import HELD_ITEMS_HEADER, encode_names
from shared_protocol.json_codec import JSON_CONTENT_TYPE
from shared_protocol.request import GenerateRequest
from shared_protocol.startup.body_memory import BodyMemory, BodyShare

SMALL_BODY_BYTES: Final = 2**18
"""Up to here a body is read where it came in, which takes a millisecond, and waits for no other."""

LARGE_BODY_THREADS: Final = 1
"""Most of the work holds the interpreter: of two threads, one took it from the other, and those
that stream waited for both."""

ReadT = TypeVar("ReadT")

_EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


class GeneratingEngine(Protocol):
    """What this route needs of `vllm_engine.Engine`."""

    def limits(self) -> ModelLimits: ...

    def default_max_tokens(self, prompt_length: int) -> int: ...

    def check_positions(self, request: EngineRequest) -> None: ...

    def generate(self, request: EngineRequest) -> AsyncIterator[list[TokenDelta]]: ...


class GenerateRoute:
    def __init__(
        self,
        engine: Callable[[], GeneratingEngine],
        requests: RunningRequests,
        memory: BodyMemory,
        held: HeldItems,
        *,
        on_refusal: Callable[[int], None],
        max_body_bytes: int,
        trust_hashes: bool,
    ) -> None:
        """
        Args:
            engine: returns the running engine, or raises `Unavailable` while there is none.
            on_refusal: called with the status of each error that is answered in place of tokens.
            trust_hashes: whether items keep the hashes that they came with.
        """
        self._engine = engine
        self._requests = requests
        self._memory = memory
        self._held = held
        self._on_refusal = on_refusal
        self._max_body_bytes = max_body_bytes
        self._trust_hashes = trust_hashes
        # Not asyncio's own threads, which start and end the engine and write its metrics.
        self._threads = ThreadPoolExecutor(LARGE_BODY_THREADS, "large-bodies")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(send)
        try:
            with (
                self._requests.one(),
                self._memory.one() as share,
                self._held.one() as recall,
            ):
                await self._respond(scope, receive, answer, share, recall)
        except TandemError as error:
            if not answer.begun:
                self._on_refusal(error.status)
                raise
            await answer.fail(error)
        except Exception:
            if not answer.begun:
                self._on_refusal(InternalError.status)
            raise

    async def _respond(
        self, scope: Scope, receive: Receive, answer: "Answer", share: BodyShare, recall: Recall
    ) -> None:
        engine = self._engine()
        try:
            body = await read_body(scope, receive, share, limit=self._max_body_bytes)
        except ClientDisconnect:
            return
        size = len(body)
        sent = await self._in_place(size, partial(decode_body, scope, body))
        whole = recall.whole(sent)
        read = await self._in_place(
            size + recall.size, partial(self._read, sent, whole, size, engine)
        )
        writer = _answer_writer(scope, read.request)
        steps = engine.generate(read.engine_request)
        await until_disconnect(receive, answer.write(writer, steps, held=read.held))

    def _read(
        self, sent: GenerateRequest, whole: GenerateRequest, size: int, engine: GeneratingEngine
    ) -> "_Read":
        """Check and rebuild what `sent` said; `whole` is the same with the items that it named."""
        limits = engine.limits()
        request = admit(whole, limits)
        # What is held was looked at when it came.
        check_values(sent, dtype=limits.dtype)
        wanted = self._held.most or not self._trust_hashes
        names = item_names(request, limits.media) if wanted else {}
        if not self._trust_hashes:
            request = with_content_hashes(request, names)
        engine_request = decode_request(
            request, default_max_tokens=engine.default_max_tokens(len(request.token_ids))
        )
        engine.check_positions(engine_request)
        return _Read(request, engine_request, self._held.hold(sent, names, size))

    async def _in_place(self, size: int, read: Callable[[], ReadT]) -> ReadT:
        """Call `read`, in a thread if a body of `size` bytes would hold up everything else."""
        if size <= SMALL_BODY_BYTES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)


@dataclass(frozen=True)
class _Read:
    """What a body said.

    Attributes:
        held: names of the items that came with their data, and are now kept.
    """

    request: GenerateRequest
    engine_request: EngineRequest
    held: list[str | None]


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine `work`; cancel it when the client leaves."""
    task = asyncio.create_task(work)
    listener = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, listener), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for pending in (task, listener):
            pending.cancel()
        await asyncio.gather(task, listener, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class AnswerWriter(Protocol):
    """One form of the answer.

    Attributes:
        content_type: of the response.
        whole: whether all deltas are wanted at once rather than as they come.
    """

    content_type: str
    whole: bool

    def deltas(self, deltas: list[TokenDelta]) -> bytes: ...

    def end(self) -> bytes: ...

    def failure(self, error: TandemError) -> bytes: ...


class Answer:
    """What is sent to the client.

    Attributes:
        begun: whether the status has been sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._writer: AnswerWriter | None = None
        self._ended = False

    @property
    def begun(self) -> bool:
        return self._writer is not None

    async def write(
        self,
        writer: AnswerWriter,
        generation: AsyncIterator[list[TokenDelta]],
        *,
        held: list[str | None],
    ) -> None:
        """Send all of `generation`; `held` are the names of the request's items."""
        headers = [(HELD_ITEMS_HEADER.encode(), encode_names(held).encode())] if any(held) else []
        async with aclosing(generation) as steps:  # type: ignore[type-var]
            if writer.whole:
                deltas = [delta async for step in steps for delta in step]
                content = writer.deltas(deltas) + writer.end()
                headers.append((b"content-length", str(len(content)).encode()))
                await self._begin(writer, headers)
                await self._end(content)
                return
            # The status waits for the first step: a failure before it is an HTTP error.
            first = await anext(steps)
            await self._begin(writer, headers)
            await self._add(writer.deltas(first))
            async for step in steps:
                await self._add(writer.deltas(step))
            await self._end(writer.end())

    async def fail(self, error: TandemError) -> None:
        """End an answer that has begun, unless all of it has been sent."""
        if self._writer is None or self._writer.whole or self._ended:
            return
        if isinstance(error, Unavailable):
            # That one says of a request that nobody began it.
            error = InternalError(error.message)
        await self._end(self._writer.failure(error))

    async def _begin(self, writer: AnswerWriter, headers: list[tuple[bytes, bytes]]) -> None:
        headers = [(b"content-type", writer.content_type.encode()), *headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._writer = writer

    async def _add(self, content: bytes) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def _end(self, content: bytes) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": False})
        self._ended = True


class FrameWriter:
    """The answer to a render service: binary frames."""

    content_type = FRAMES_CONTENT_TYPE

    def __init__(self, request: GenerateRequest) -> None:
        self.whole = not request.stream

    def deltas(self, deltas: list[TokenDelta]) -> bytes:
        frames = merged(deltas) if self.whole else deltas
        return b"".join([encode_frame(frame) for frame in frames])

    def end(self) -> bytes:
        return b""

    def failure(self, error: TandemError) -> bytes:
        return encode_frame(Failure(error.message, error.status, error.param))


class JsonWriter:
    """One JSON document."""

    content_type = JSON_CONTENT_TYPE
    whole = True

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request

    def deltas(self, deltas: list[TokenDelta]) -> bytes:
        return msgspec.json.encode(json_answer.answer_body(self._request, deltas))

    def end(self) -> bytes:
        return b""

    def failure(self, error: TandemError) -> bytes:
        raise AssertionError("an answer that is not streamed fails with an HTTP status") from error


class EventWriter:
    """Server-sent events, ended by ``[DONE]``."""

    content_type = _EVENT_STREAM
    whole = False

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._completion_tokens = 0

    def deltas(self, deltas: list[TokenDelta]) -> bytes:
        self._completion_tokens += sum(len(delta.token_ids) for delta in deltas)
        return b"".join([json_answer.stream_event(self._request, delta) for delta in deltas])

    def end(self) -> bytes:
        return b"".join(json_answer.stream_end(self._request, self._completion_tokens))

    def failure(self, error: TandemError) -> bytes:
        return json_answer.stream_failure(error)


def _answer_writer(scope: Scope, request: GenerateRequest) -> AnswerWriter:
    if FRAMES_CONTENT_TYPE in Headers(scope=scope).get("accept", ""):
        return FrameWriter(request)
    if request.stream and request.pooling_params is None:
        return EventWriter(request)
    return JsonWriter(request)
