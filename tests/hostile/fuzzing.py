"""An attack on a generate service with mutated requests, and what came of it."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, encode_binary
from shared_protocol.json_codec import decode_json
from tests.hostile.mutations import Mutant, mutants

PATH = "/inference/v1/generate"
EXPECTED_STATUSES = {200, 400, 404, 409, 413}
_AT_ONCE = 4
_TRUE_REQUEST_EVERY = 100
_HANG_S = 60.0


@dataclass
class Attack:
    """
    Attributes:
        statuses: how often each was answered.
        failures: what must not have happened, with the steps that made the request.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


async def true_requests(render: str, chats: list[dict[str, Any]]) -> list[bytes]:
    """What the render service makes of `chats`, in the binary form, answered in one piece."""
    bodies = []
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        for chat in chats:
            response = await client.post(f"{render}/v1/chat/completions/render", json=chat)
            response.raise_for_status()
            request = decode_json(response.content)
            bodies.append(encode_binary(msgspec.structs.replace(request, stream=False)))
    return bodies


async def attack(
    generate: str,
    bodies: list[bytes],
    *,
    seed: int,
    count: int,
    look: Callable[[int], None] = lambda sent: None,
) -> Attack:
    """Send `count` mutants of `bodies`; after every hundred, the true ones, answered as before.

    Args:
        look: called after each hundred with the number of mutants so far.
    """
    seen = Attack()
    limits = httpx.Limits(max_connections=_AT_ONCE)
    async with httpx.AsyncClient(timeout=_HANG_S, limits=limits, trust_env=False) as client:
        before = await true_answers(client, generate, bodies)
        assert all(isinstance(answer, list) for answer in before), before
        source = itertools.islice(mutants(bodies, seed), count)
        while batch := list(itertools.islice(source, _TRUE_REQUEST_EVERY)):
            pending = iter(batch)
            await asyncio.gather(
                *(_send_all(client, generate, pending, seen) for _ in range(_AT_ONCE))
            )
            after = await true_answers(client, generate, bodies)
            if after != before:
                seen.failures.append(f"true requests were answered {after}, not {before}")
            look(seen.statuses.total())
            if seen.failures:
                break
    return seen


async def _send_all(
    client: httpx.AsyncClient, generate: str, pending: Iterator[Mutant], seen: Attack
) -> None:
    for mutant in pending:
        try:
            response = await _post(client, generate, mutant.content_type, mutant.body)
        except httpx.TransportError as error:
            seen.failures.append(f"{type(error).__name__} {error} after {mutant.steps}")
            return
        seen.statuses[response.status_code] += 1
        if response.status_code not in EXPECTED_STATUSES:
            seen.failures.append(f"{response.text[:300]} after {mutant.steps}")


async def true_answers(client: httpx.AsyncClient, generate: str, bodies: list[bytes]) -> list[Any]:
    answers: list[Any] = []
    for body in bodies:
        try:
            response = await _post(client, generate, BINARY_CONTENT_TYPE, body)
        except httpx.TransportError as error:
            return [*answers, type(error).__name__]
        if response.status_code != httpx.codes.OK:
            return [*answers, response.text[:300]]
        answers.append([choice["token_ids"] for choice in response.json()["choices"]])
    return answers


async def _post(
    client: httpx.AsyncClient, generate: str, content_type: str, body: bytes
) -> httpx.Response:
    headers = {"content-type": content_type, "accept": "application/json"}
    return await client.post(generate + PATH, content=body, headers=headers)
