"""A stream that no replica takes is a 503; one that a replica has begun is a stream."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from render_service.held_status import HeldStatus, note_begun, note_refusal
from shared_protocol.errors import Unavailable

pytestmark = pytest.mark.anyio

CHAT_PATH = "/v1/chat/completions"
REFUSAL = Unavailable("busy", retry_after_s=7)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    respond: Callable[[], Response], path: str = CHAT_PATH, method: str = "POST"
) -> Answer:
    sent = await messages_of(respond, path, method)
    start, *bodies = sent
    assert [message["type"] for message in bodies] == ["http.response.body"] * len(bodies)
    assert not bodies[-1].get("more_body")
    return Answer(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(message["body"] for message in bodies),
    )


async def messages_of(respond: Callable[[], Response], path: str, method: str) -> list[Message]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond()(scope, receive, send)

    async def receive() -> Message:
        raise AssertionError("nothing is left to be read")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "method": method,
        "path": path,
    }
    await HeldStatus(app)(scope, receive, send)
    return sent


def stream(*steps: str | Callable[[], None]) -> Callable[[], Response]:
    """A response that sends the texts, and calls what can be called, in this order."""

    async def content() -> AsyncIterator[str]:
        for step in steps:
            if isinstance(step, str):
                yield step
            else:
                step()

    return lambda: StreamingResponse(content(), media_type="text/event-stream")


def refuse() -> None:
    note_refusal(REFUSAL)


async def test_a_refused_stream_is_a_503() -> None:
    answer = await ask(stream("event: created", refuse, "event: error", "event: more"))
    assert answer.status == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert json.loads(answer.body) == REFUSAL.body()


async def test_a_refused_message_has_the_form_of_its_api() -> None:
    answer = await ask(stream(refuse, "event: error"), path="/v1/messages")
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": "ServiceUnavailableError", "message": "busy"},
    }


async def test_what_was_sent_before_a_replica_began_comes_first() -> None:
    answer = await ask(stream("a", "b", note_begun, "c", "d"))
    assert (answer.status, answer.body) == (200, b"abcd")


async def test_events_are_not_held_once_a_replica_has_begun() -> None:
    seen: list[int] = []
    sent = await messages_of(
        stream(note_begun, "a", lambda: seen.append(1), "b"), CHAT_PATH, "POST"
    )
    assert [message.get("body") for message in sent] == [None, b"a", b"b", b""]


async def test_a_refusal_after_one_has_begun_is_left_to_the_stream() -> None:
    """Of several prompts or choices the first may have been taken."""
    answer = await ask(stream(note_begun, "a", refuse, "error"))
    assert (answer.status, answer.body) == (200, b"aerror")


async def test_an_error_without_any_replica_is_left_to_the_stream() -> None:
    answer = await ask(stream("error", "[DONE]"))
    assert (answer.status, answer.body) == (200, b"error[DONE]")


async def test_what_a_get_streams_is_not_held() -> None:
    sent = await messages_of(stream("a"), "/v1/responses/resp_1", "GET")
    assert [message.get("body") for message in sent] == [None, b"a", b""]


async def test_a_503_without_retry_after_gets_it() -> None:
    def respond() -> Response:
        refuse()
        return JSONResponse({"type": "error"}, status_code=503)

    answer = await ask(respond, path="/v1/messages")
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert json.loads(answer.body) == {"type": "error"}


async def test_other_answers_pass() -> None:
    answer = await ask(lambda: JSONResponse({"a": 1}))
    assert (answer.status, answer.body) == (200, b'{"a":1}')
    assert "retry-after" not in answer.headers
