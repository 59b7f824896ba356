"""Requests of every kind from clients of every kind, for as long as it is wanted."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.conftest import SERVED_NAME
from tests.parity.api_requests import ApiRequest, api_requests
from tests.parity.chats import chat_requests

CHAT: Final = "/v1/chat/completions"
_TRUE: Final = ("the quick brown fox", "one two three", "a lazy dog")
_GARBAGE: Final = (
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b'{"model": 7}',
    b'{"messages": "' + b"a" * 70_000,
)
# Also those for what this model has not: embeddings, transcriptions.
_TICK_S: Final = 0.5
_ANSWERS: Final = {200, 400, 404, 413, 422, 501}


@dataclass
class Outcome:
    """
    Attributes:
        statuses: of answers; "left" counts clients that did not wait for theirs.
        failures: what must not have happened, the first of each kind.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.statuses.total()


class Traffic:
    """Clients side by side, each of which sends one request after the other."""

    def __init__(self, url: str, *, seed: int, hidden_size: int) -> None:
        self.outcome = Outcome()
        self._draw = random.Random(seed)
        self._api = _endless(lambda seed: api_requests(seed, 500), seed)
        self._chats = _endless(lambda seed: chat_requests(seed, 100, hidden_size=hidden_size), seed)
        self._url = url
        self._whole: dict[str, str] = {}
        self._stalls = "never stood still"

    async def run(self, clients: int, goes_on: Callable[[], bool]) -> None:
        ways: list[Callable[[httpx.AsyncClient], Awaitable[str]]] = [
            *([self._ask_api] * 4),
            *([self._ask_chat] * 3),
            *([self._leave] * 2),
            *(self._send_garbage, self._ask_true, self._read_slowly),
        ]

        async def client() -> None:
            async with httpx.AsyncClient(
                base_url=self._url, timeout=120.0, trust_env=False
            ) as session:
                ended = time.monotonic()
                while goes_on():
                    way = self._draw.choice(ways)
                    began = time.monotonic()
                    try:
                        status = await way(session)
                    except httpx.TransportError as error:
                        status = type(error).__name__
                        self._fail(
                            status,
                            f"{way.__name__}, {time.monotonic() - began:.3f} s after it began and "
                            f"{began - ended:.3f} s after the last, at "
                            f"{time.strftime('%H:%M:%S')}; {self._stalls}: {_chain(error)}",
                        )
                    self.outcome.statuses[status] += 1
                    ended = time.monotonic()

        async with asyncio.TaskGroup() as group:
            clock = group.create_task(self._notice_stalls())
            async with asyncio.TaskGroup() as asking:
                for _ in range(clients):
                    asking.create_task(client())
            clock.cancel()

    async def _notice_stalls(self) -> None:
        """Keep what to say of moments in which this process stood still: a lost connection may be
        the doing of the machine."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK_S)
            stood_s = time.monotonic() - before - _TICK_S
            if stood_s > _TICK_S:
                self._stalls = f"stood still for {stood_s:.1f} s at {time.strftime('%H:%M:%S')}"

    def _fail(self, kind: str, what: str) -> None:
        self.outcome.failures.setdefault(kind, what)

    def _status(
        self, response: httpx.Response, asked: object, *, fails_in_vllm: bool = False
    ) -> str:
        """Look at an answer that has been read, and name it."""
        return self._look(response.status_code, response.text, asked, fails_in_vllm)

    def _look(self, status: int, text: str, asked: object, fails_in_vllm: bool = False) -> str:
        failed_stream = status == httpx.codes.OK and '"error":{' in text
        if fails_in_vllm and (failed_stream or status == httpx.codes.INTERNAL_SERVER_ERROR):
            return "500 as by vLLM alone"
        if failed_stream or status not in _ANSWERS:
            kind = "an error in a stream" if failed_stream else str(status)
            self._fail(kind, f"{text[-300:]} for {str(asked)[:1000]}")
        return str(status)

    async def _ask_api(self, session: httpx.AsyncClient) -> str:
        asked: ApiRequest = next(self._api)
        response = await session.post(asked.path, json=asked.body)
        return self._status(response, asked, fails_in_vllm=_fails_in_vllm(asked.body))

    async def _ask_chat(self, session: httpx.AsyncClient) -> str:
        body = {"model": SERVED_NAME, **next(self._chats)}
        response = await session.post(CHAT, json=body)
        if body["stream"] and not response.text.endswith("data: [DONE]\n\n"):
            self._fail("cut off", response.text[-300:])
        return self._status(response, body)

    async def _ask_true(self, session: httpx.AsyncClient) -> str:
        """What was answered before is answered again."""
        prompt = self._draw.choice(_TRUE)
        body = _plain(prompt) | {"temperature": 0.0}
        response = await session.post(CHAT, json=body)
        if response.status_code == httpx.codes.OK:
            text = response.json()["choices"][0]["message"]["content"]
            if text != self._whole.setdefault(prompt, text):
                self._fail("another answer", f"{text!r}, not {self._whole[prompt]!r}")
        return self._status(response, body)

    async def _leave(self, session: httpx.AsyncClient) -> str:
        """Go in the middle of an answer, or before there is one."""
        body = _plain(f"{self._draw.random()}") | {
            "max_tokens": 400,
            "ignore_eos": True,
            "stream": self._draw.random() < 0.7,
            "n": self._draw.choice([1, 1, 3]),
        }
        try:
            async with asyncio.timeout(self._draw.uniform(0.0, 1.0)):
                return self._status(await session.post(CHAT, json=body), body)
        except TimeoutError:
            return "left"

    async def _read_slowly(self, session: httpx.AsyncClient) -> str:
        body = _plain("the quick") | {"max_tokens": 60, "ignore_eos": True, "stream": True}
        text = ""
        async with session.stream("POST", CHAT, json=body) as response:
            async for piece in response.aiter_text(64):
                text += piece
                await asyncio.sleep(0.005)
        return self._look(response.status_code, text, body)

    async def _send_garbage(self, session: httpx.AsyncClient) -> str:
        content = self._draw.choice(_GARBAGE)
        headers = {"content-type": "application/json"}
        return self._status(await session.post(CHAT, content=content, headers=headers), content)


def _chain(error: BaseException | None) -> str:
    """The error with those that it came of, the last of which the system names."""
    causes = []
    while error is not None:
        causes.append(repr(error))
        error = error.__cause__ or error.__context__
    return " from ".join(causes)


def _fails_in_vllm(body: dict[str, Any]) -> bool:
    """Whether vLLM 0.32.0 may have no other answer than 500 either; the parity tests compare it.

    A prompt is cut off before its image, or no token that is allowed continues the structure.
    """
    structured = body.keys() & {"structured_outputs", "response_format"}
    limited = body.keys() & {"allowed_token_ids", "stop_token_ids"}
    return "truncate_prompt_tokens" in body or bool(structured and limited)


def _plain(prompt: str) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 16,
    }


def _endless(make: Callable[[int], Iterator[Any]], seed: int) -> Iterator[Any]:
    return itertools.chain.from_iterable(make(each) for each in itertools.count(seed))
