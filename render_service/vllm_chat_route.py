"""``/v1/chat/completions`` as vLLM answers it, with errors that say where in the request they are.

vLLM looks at content parts only while it renders, one by one, and then no longer knows which of
them it was.
"""

import functools
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError, model_validator
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.exceptions import VLLMUnprocessableEntityError, VLLMValidationError
from vllm.renderers.chat_utils import MM_PARSER_MAP
from vllm.renderers.online_renderer import OnlineRenderer

PART_TYPES: Final = frozenset(MM_PARSER_MAP)


class LocatedChatRequest(ChatCompletionRequest):
    """vLLM's chat request, whose content parts are looked at before it is one."""

    @model_validator(mode="before")
    @classmethod
    def check_parts(cls, data: Any) -> Any:
        for where, part in _parts(data):
            if (kind := part.get("type")) is not None and kind not in PART_TYPES:
                raise VLLMValidationError(
                    f"Unsupported content part type {kind!r}. Supported are "
                    f"{', '.join(sorted(PART_TYPES))}.",
                    parameter=f"{where}.type",
                )
            if kind == "prompt_embeds" and not (part.get("data") and isinstance(part["data"], str)):
                raise VLLMValidationError(
                    "A prompt_embeds part needs `data`: base64 of a file with a tensor.",
                    parameter=f"{where}.data",
                )
        return data


def _parts(data: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    messages = data.get("messages") if isinstance(data, dict) else None
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                yield f"messages[{index}].content[{place}]", part


def chat_router() -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        dependencies=[Depends(validate_json_request)],
        responses={
            HTTPStatus.OK.value: {"content": {"text/event-stream": {}}},
            **{
                status.value: {"model": ErrorResponse}
                for status in (
                    HTTPStatus.BAD_REQUEST,
                    HTTPStatus.NOT_FOUND,
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    HTTPStatus.SERVICE_UNAVAILABLE,
                )
            },
        },
    )
    async def chat(request: LocatedChatRequest, raw_request: Request) -> Any:
        """Create a chat completion, streamed or not."""
        return await create_chat_completion(request, raw_request)

    return router


class _MessageAlone:
    """An error that vLLM reports without adding its parameter to the message."""

    args: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.args[0])


class NamedValidationError(_MessageAlone, VLLMValidationError): ...


class NamedUnprocessableError(_MessageAlone, VLLMUnprocessableEntityError): ...


def name_messages_in_errors(renderer: OnlineRenderer) -> None:
    """Have `renderer` say ``messages`` in the errors in which vLLM names no field."""
    renderer.render_chat = _naming_messages(renderer.render_chat)


def _naming_messages(render: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(render)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await render(*args, **kwargs)
        except VLLMUnprocessableEntityError as error:
            if error.parameter is not None:
                raise
            raise NamedUnprocessableError(str(error), parameter="messages") from error
        except VLLMValidationError as error:
            if error.parameter is not None:
                raise
            raise NamedValidationError(str(error), parameter="messages") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise VLLMValidationError(
                f"A content part is not valid: {first['msg']}", parameter="messages"
            ) from error
        except ValueError as error:
            raise NamedValidationError(str(error), parameter="messages") from error

    return wrapper
