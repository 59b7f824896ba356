"""The status of a stream waits until a replica has begun the request.

vLLM says 200 to a stream before its engine has the request, as it has asked whether the engine
takes it. Here that is known only once replicas were sent the request. If all of them refuse it, the
client is to get a 503 with `Retry-After`, which its library knows to try again after, and not a
stream that holds nothing but an error.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared_protocol.errors import Unavailable

_ANTHROPIC_PATH: Final = "/v1/messages"


@dataclass
class Outcome:
    """What became of the request that a client made.

    Attributes:
        begun: whether a replica has begun it, or one of the several that it was made into.
        refusal: why no replica has.
    """

    begun: bool = False
    refusal: Unavailable | None = None

    @property
    def refused(self) -> Unavailable | None:
        return None if self.begun else self.refusal


_outcome: ContextVar[Outcome | None] = ContextVar("outcome", default=None)


def note_begun() -> None:
    """Say that a replica has begun a request of the client that is being answered."""
    if (outcome := _outcome.get()) is not None:
        outcome.begun = True


def note_refusal(error: Unavailable) -> None:
    """Say that no replica takes a request of the client that is being answered."""
    if (outcome := _outcome.get()) is not None:
        outcome.refusal = error


class HeldStatus:
    """ASGI middleware: see above. Also adds `Retry-After` where vLLM loses it."""

    def __init__(self, app: ASGIApp, *, on_refusal: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            on_refusal: called for each request of a client that no replica takes.
        """
        self._app = app
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with _watched() as outcome:
            await self._app(scope, receive, _HoldingSend(scope, send, outcome))
        if outcome.refused is not None:
            self._on_refusal()


@contextmanager
def _watched() -> Iterator[Outcome]:
    outcome = Outcome()
    token = _outcome.set(outcome)
    try:
        yield outcome
    finally:
        _outcome.reset(token)


class _HoldingSend:
    """`send` of one request; what it holds is sent with the message after a replica has begun."""

    def __init__(self, scope: Scope, send: Send, outcome: Outcome) -> None:
        self._scope = scope
        self._send = send
        self._outcome = outcome
        self._held: list[Message] = []
        self._answered = False

    async def __call__(self, message: Message) -> None:
        if self._answered:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif not self._held:
            await self._send(message)
        elif (refusal := self._outcome.refused) is not None:
            self._answered = True
            await self._refuse(refusal)
        else:
            self._held.append(message)
            if self._outcome.begun or not message.get("more_body"):
                held, self._held = self._held, []
                for ready in held:
                    await self._send(ready)

    async def _start(self, message: Message) -> None:
        headers = Headers(raw=message["headers"])
        # A POST makes a generation; what a GET streams is one that another request has made.
        if self._scope["method"] == "POST" and _is_event_stream(headers):
            self._held.append(message)
            return
        if (refusal := self._outcome.refused) is not None and message["status"] == refusal.status:
            named = MutableHeaders(raw=list(message["headers"]))
            named.update(refusal.headers())
            message = {**message, "headers": named.raw}
        await self._send(message)

    async def _refuse(self, refusal: Unavailable) -> None:
        content = json.dumps(_body(self._scope["path"], refusal)).encode()
        headers = MutableHeaders({"content-type": "application/json", **refusal.headers()})
        headers["content-length"] = str(len(content))
        await self._send(
            {"type": "http.response.start", "status": refusal.status, "headers": headers.raw}
        )
        await self._send({"type": "http.response.body", "body": content})


def _is_event_stream(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith("text/event-stream")


def _body(path: str, error: Unavailable) -> dict[str, Any]:
    if path.startswith(_ANTHROPIC_PATH):
        return {"type": "error", "error": {"type": error.error_type, "message": error.message}}
    return error.body()
