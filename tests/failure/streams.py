"""Clients that read streams while something fails, and how each stream ended."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.conftest import SERVED_NAME

_PROMPTS: Final = ("the quick brown fox", "one two three", "a lazy dog jumps", "over and over")


@dataclass
class Ending:
    """
    Attributes:
        status: None if the connection failed before there was one.
        wanted: how many tokens were asked for.
        text: all that came.
        errors: terminal events that are errors.
        done: whether the stream said that it was over.
        broken: whether the connection ended before that.
        tokens: what the usage at the end says; None without.
        at: when it was over, by the clock of `time.monotonic`.
    """

    prompt: str
    wanted: int
    status: int | None = None
    text: str = ""
    errors: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    broken: bool = False
    tokens: int | None = None
    at: float = 0.0

    @property
    def whole(self) -> bool:
        return self.done and not self.errors and self.tokens == self.wanted


class Streams:
    """Chats that run side by side, in prompts that repeat."""

    def __init__(
        self, client: httpx.AsyncClient, urls: list[str], count: int, *, tokens: int
    ) -> None:
        """Begin `count` chats, at each of the `urls` in turn."""
        self.begun = asyncio.Semaphore(0)
        self._count = count
        self._tasks = [
            asyncio.create_task(
                read_chat(
                    client,
                    urls[index % len(urls)],
                    _PROMPTS[index % len(_PROMPTS)],
                    self.begun,
                    tokens=tokens,
                )
            )
            for index in range(count)
        ]

    async def wait_until_running(self, count: int) -> None:
        """Until so many have got some text."""
        async with asyncio.timeout(60.0):
            for _ in range(count):
                await self.begun.acquire()

    async def endings(self, within_s: float) -> list[Ending]:
        async with asyncio.timeout(within_s):
            return list(await asyncio.gather(*self._tasks))


async def read_chat(
    client: httpx.AsyncClient, url: str, prompt: str, begun: asyncio.Semaphore, *, tokens: int
) -> Ending:
    ending = Ending(prompt, tokens)
    chat = {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=chat) as response:
            ending.status = response.status_code
            async for line in response.aiter_lines():
                silent = not ending.text
                _take(ending, line)
                if silent and ending.text:
                    begun.release()
    except httpx.TransportError:
        ending.broken = True
    ending.at = time.monotonic()
    return ending


def _take(ending: Ending, line: str) -> None:
    said = line.removeprefix("data: ")
    if said == line:
        return
    if said == "[DONE]":
        ending.done = True
        return
    event = json.loads(said)
    if "error" in event:
        ending.errors.append(event["error"])
        return
    ending.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if event.get("usage"):
        ending.tokens = event["usage"]["completion_tokens"]


async def whole_texts(client: httpx.AsyncClient, url: str, *, tokens: int) -> dict[str, str]:
    """What each prompt is answered while nothing fails."""
    never = asyncio.Semaphore(0)
    endings = [await read_chat(client, url, prompt, never, tokens=tokens) for prompt in _PROMPTS]
    assert all(ending.whole for ending in endings), endings
    return {ending.prompt: ending.text for ending in endings}
