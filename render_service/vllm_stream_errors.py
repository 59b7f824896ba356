"""What a client is told when the stream of a response or of a message breaks.

vLLM has no event for it among those of its responses, and closes the connection in the middle of
the body; into the stream of a message it writes how its own parsing of the error failed.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final, NoReturn

from fastapi.datastructures import State
from openai.types.responses import ResponseErrorEvent
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

logger = logging.getLogger(__name__)

_DATA: Final = "data: "

Events = Callable[..., AsyncGenerator[Any, None]]


def report_errors_in_streams(state: State) -> None:
    """Have the serving classes in an application's state end a broken stream with its error."""
    responses, messages = state.openai_serving_responses, state.anthropic_serving_messages
    # vLLM tries to make one of its own events of the error, which is another error.
    responses._convert_generation_error_to_streaming_response = _raise
    responses.responses_stream_generator = _ended_by_error(responses.responses_stream_generator)
    messages.message_stream_converter = _told_of_error(messages.message_stream_converter)


def _raise(error: Exception) -> NoReturn:
    raise error


def _ended_by_error(generate: Events) -> Events:
    """Wrap the maker of a response's events: an exception becomes OpenAI's event ``error``."""

    async def events(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        sequence_number = 0
        try:
            async for event in generate(*args, **kwargs):
                sequence_number += 1
                yield event
        except Exception as error:
            yield _error_event(error, sequence_number)

    return events


def _error_event(error: Exception, sequence_number: int) -> ResponseErrorEvent:
    info = create_error_response(error).error
    if info.code >= 500:
        logger.error("the stream of a response broke", exc_info=error)
    return ResponseErrorEvent(
        type="error",
        code=info.type,
        message=info.message,
        param=info.param,
        sequence_number=sequence_number,
    )


class _ChatFailed(Exception):
    """Has the message that the stream of the chat behind a message ended with."""


def _told_of_error(convert: Events) -> Events:
    """Wrap the converter of a chat's events into a message's: it writes out what is raised."""

    async def checked(chat: AsyncIterator[str]) -> AsyncIterator[str]:
        async for event in chat:
            if (message := _error_message(event)) is not None:
                raise _ChatFailed(message)
            yield event

    def events(chat: AsyncIterator[str]) -> AsyncGenerator[Any, None]:
        return convert(checked(chat))

    return events


def _error_message(event: str) -> str | None:
    if not event.startswith(f'{_DATA}{{"error"'):
        return None
    message: str = json.loads(event.removeprefix(_DATA))["error"]["message"]
    return message
