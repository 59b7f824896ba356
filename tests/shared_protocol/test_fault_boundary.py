"""A fault is answered with a 500 that tells nothing, and the connection goes on."""

import json
from typing import Any

import pytest

from shared_protocol.error_answer import Message, Receive, Send
from shared_protocol.fault_boundary import FaultBoundary

pytestmark = pytest.mark.anyio


async def receive() -> Message:
    return {"type": "http.request"}


async def answer_of(started: bool, scope_type: str = "http") -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("/secret/path")

    await FaultBoundary(app)({"type": scope_type}, receive, send)
    return sent


async def test_a_fault_before_the_answer() -> None:
    start, body = await answer_of(started=False)
    assert start["status"] == 500
    error: dict[str, Any] = json.loads(body["body"])["error"]
    assert error == {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


@pytest.mark.parametrize(("started", "scope_type"), [(True, "http"), (False, "websocket")])
async def test_a_fault_that_cannot_be_answered(started: bool, scope_type: str) -> None:
    with pytest.raises(ZeroDivisionError):
        await answer_of(started, scope_type)
