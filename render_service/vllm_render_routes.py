"""The ``/render`` endpoints: the request that would be sent, instead of its answer.

vLLM's own serving class renders the request, on an engine client that records what it is asked to
generate. So what is shown is what would be sent, whatever the request says.
"""

import copy
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import Any, NoReturn

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
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


def render_router(chat: OpenAIServingChat, engine: RemoteEngine) -> APIRouter:
    router = APIRouter()
    rendering_chat = copy.copy(chat)
    rendering_chat.engine_client = RecordingEngine(engine)

    @router.post("/v1/chat/completions/render")
    async def render_chat(request: LocatedChatRequest, raw_request: Request) -> Response:
        """Return the request that a generate replica would be sent for this chat."""
        recorded: list[GenerateRequest] = []
        _recorded.set(recorded)
        # Only an answer that is not streamed runs the engine before it returns.
        plain = request.model_copy(update={"stream": False})
        try:
            refusal = await rendering_chat.create_chat_completion(plain, raw_request)
        except _Recorded:
            (wire,) = recorded
            wire = msgspec.structs.replace(wire, model=request.model, stream=bool(request.stream))
            return Response(encode_json(wire), media_type=JSON_CONTENT_TYPE)
        assert isinstance(refusal, ErrorResponse)
        return JSONResponse(refusal.model_dump(), status_code=refusal.error.code)

    return router
