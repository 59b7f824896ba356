"""The ``/render`` endpoints: the request that would be sent, instead of its answer.

vLLM's own serving class renders the request, on an engine client that records what it is asked to
generate. So what is shown is what would be sent, whatever the request says.
"""

import copy
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import State
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import with_cancellation
from vllm.exceptions import VLLMValidationError
from vllm.inputs import EngineInput
from vllm.sampling_params import SamplingParams

from render_service.remote_engine import RemoteEngine, translated_errors
from render_service.vllm_chat_route import LocatedChatRequest
from shared_protocol.json_codec import JSON_CONTENT_TYPE, encode_json
from shared_protocol.request import GenerateRequest

_recorded: ContextVar[list[GenerateRequest]] = ContextVar("recorded requests")


class _Recorded(Exception):
    """Ends a serving call once what it would generate is known."""


class RecordingEngine:
    """An engine client that prepares requests as `RemoteEngine` does, and sends none."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Rendering needs no replica."""

    def generate(
        self, prompt: EngineInput, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[NoReturn, None]:
        with translated_errors():
            request = self._engine.prepare(prompt, sampling_params, request_id, **options)
        _recorded.get().append(request.wire)
        return _end()


async def _end() -> AsyncGenerator[NoReturn, None]:
    raise _Recorded
    yield


def render_router(state: State, engine: RemoteEngine) -> APIRouter:
    """Offer the ``/render`` form of each API that `state`, vLLM's application state, serves."""
    router = APIRouter()
    recording = RecordingEngine(engine)
    chat = _recording(state.openai_serving_chat, recording)
    completion = _recording(state.openai_serving_completion, recording)
    messages = _recording(state.anthropic_serving_messages, recording)
    responses = _recording(state.openai_serving_responses, recording)

    @router.post("/v1/chat/completions/render")
    @with_cancellation  # type: ignore[untyped-decorator]
    async def render_chat(request: LocatedChatRequest, raw_request: Request) -> Response:
        """Return the request that a generate replica would be sent for this chat."""
        return await _render(chat.create_chat_completion, request, raw_request)

    @router.post("/v1/messages/render")
    @with_cancellation  # type: ignore[untyped-decorator]
    async def render_messages(request: AnthropicMessagesRequest, raw_request: Request) -> Response:
        """Return the request that a generate replica would be sent for these messages."""
        return await _render(messages.create_messages, request, raw_request)

    @router.post("/v1/responses/render")
    @with_cancellation  # type: ignore[untyped-decorator]
    async def render_responses(request: ResponsesRequest, raw_request: Request) -> Response:
        """Return the request that a generate replica would be sent for this response."""
        return await _render(responses.create_responses, request, raw_request, background=False)

    @router.post("/v1/completions/render")
    @with_cancellation  # type: ignore[untyped-decorator]
    async def render_completion(request: CompletionRequest, raw_request: Request) -> Response:
        """Return the list of requests that replicas would be sent, one a prompt."""
        return await _render(completion.create_completion, request, raw_request)

    return router


def _recording(serving: Any, engine: RecordingEngine) -> Any:
    rendering = copy.copy(serving)
    rendering.engine_client = engine
    return rendering


async def _render(
    serve: Callable[..., Awaitable[Any]], request: Any, raw_request: Request, **changes: Any
) -> Response:
    if getattr(request, "use_beam_search", False):
        raise VLLMValidationError(
            "A beam search is many requests, each made of the answers before it; it has no "
            "rendered form.",
            parameter="use_beam_search",
        )
    recorded: list[GenerateRequest] = []
    _recorded.set(recorded)
    # Only an answer that is not streamed runs the engine before it returns.
    plain = request.model_copy(update={"stream": False, **changes})
    try:
        refusal = await serve(plain, raw_request)
    except _Recorded:
        return _show(recorded, request)
    assert isinstance(refusal, ErrorResponse)
    return JSONResponse(refusal.model_dump(), status_code=refusal.error.code)


def _show(recorded: list[GenerateRequest], request: Any) -> Response:
    shown = [
        encode_json(msgspec.structs.replace(wire, model=request.model, stream=bool(request.stream)))
        for wire in recorded
    ]
    many = isinstance(request, CompletionRequest)
    content = b"[" + b",".join(shown) + b"]" if many else shown[0]
    return Response(content, media_type=JSON_CONTENT_TYPE)
