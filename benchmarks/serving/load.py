"""A closed loop of clients: each sends its next request when its last is answered."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Answered:
    """One request's times in seconds from its sending.

    Attributes:
        first_s: until the first token could be read; of a whole answer, all of it.
        tokens: those that were generated; 0 if the request failed.
    """

    first_s: float
    whole_s: float
    tokens: int
    error: str | None = None


Ask = Callable[[aiohttp.ClientSession, dict[str, Any]], Awaitable[Answered]]


async def run_load(
    ask: Ask, requests: list[dict[str, Any]], concurrency: int
) -> tuple[list[Answered], float]:
    """Return what came of each request, and the seconds that all of them took."""
    pending = iter(requests)
    answers: list[Answered] = []
    connector = aiohttp.TCPConnector(limit=concurrency)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def client() -> None:
            for request in pending:
                answers.append(await _guarded(ask, session, request))

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        return answers, time.perf_counter() - start


async def _guarded(ask: Ask, session: aiohttp.ClientSession, request: dict[str, Any]) -> Answered:
    try:
        return await ask(session, request)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        return Answered(0.0, 0.0, 0, f"{type(error).__name__}: {error}"[:200])


def chat(url: str) -> Ask:
    """Ask an OpenAI-compatible server."""

    async def ask(session: aiohttp.ClientSession, request: dict[str, Any]) -> Answered:
        start = time.perf_counter()
        async with session.post(f"{url}/v1/chat/completions", json=request) as response:
            response.raise_for_status()
            if request["stream"]:
                return await _read_stream(response, start)
            body = await response.json()
        whole = time.perf_counter() - start
        return Answered(whole, whole, body["usage"]["completion_tokens"])

    return ask


async def _read_stream(response: aiohttp.ClientResponse, start: float) -> Answered:
    first = None
    last_event = b""
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        # The first event tells the role only.
        if first is None and last_event:
            first = time.perf_counter() - start
        last_event = line
    usage = json.loads(last_event.removeprefix(b"data: "))["usage"]
    return Answered(first or 0.0, time.perf_counter() - start, usage["completion_tokens"])


def stock_pair(render: str, engine: str) -> Ask:
    """Carry a request by hand through stock vLLM's render, engine and derender endpoints."""

    async def ask(session: aiohttp.ClientSession, request: dict[str, Any]) -> Answered:
        start = time.perf_counter()
        rendered = await _post(session, f"{render}/v1/chat/completions/render", request)
        generated = await _post(session, f"{engine}/inference/v1/generate", rendered)
        answer = await _post(
            session,
            f"{render}/v1/chat/completions/derender",
            {"generate_response": generated, "prompt_tokens": len(rendered["token_ids"])},
        )
        whole = time.perf_counter() - start
        return Answered(whole, whole, answer["usage"]["completion_tokens"])

    return ask


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        answer: dict[str, Any] = await response.json()
        return answer
