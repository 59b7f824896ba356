"""One family through the pair, through `vllm serve`, and through stock vLLM's own pair."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.checkpoints import checkpoint
from tests.models.counts import Count, add_encoder_rows, count_items
from tests.models.door import runs
from tests.models.families import COMMON_FLAGS, FAMILIES, Family, media_chats
from tests.models.requests import SERVED_NAME, family_chats
from tests.models.stock_pair import ask_stock_pair, dies, stock_render
from tests.models.vllm_encoder_rows import WORKER_EXTENSION
from tests.monolith import Monolith
from tests.pair import Pair
from tests.parity.answers import Answer, ask, differences
from tests.processes import Server, ServerError

MAX_MODEL_LEN = 4096

logger = logging.getLogger(__name__)


@dataclass
class Measured:
    """
    Attributes:
        masks: runs of one item's mask by modality; "dense" where there is none.
        cases: how many requests the pair and the monolith were compared on.
        failures: what differed.
        killers: requests that end vLLM's own server, which is then started again.
        counts: of items of different sizes.
        stock: what came of one request through stock vLLM's own pair, by modality.
        error: why neither could be started.
    """

    masks: dict[str, str] = field(default_factory=dict)
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    killers: list[str] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    stock: dict[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def passed(self) -> int:
        return self.cases - len({failure.partition(": ")[0] for failure in self.failures})


def read_measured(saved: dict[str, Any]) -> Measured:
    """The inverse of `dataclasses.asdict`."""
    return Measured(**saved | {"counts": [Count(**count) for count in saved["counts"]]})


def measure(name: str, logs: Path) -> Measured:
    """Run a family's cases; one engine at a time, so that two cores and their memory will do."""
    family = FAMILIES[name]
    # With spare rows the sentinel of supplied embeddings is in the vocabulary: only then does
    # vLLM answer chats that mix them with media.
    model = checkpoint(family.checkpoint, vocab_headroom=True)
    flags = (
        *(f"--served-model-name={SERVED_NAME}", f"--max-model-len={MAX_MODEL_LEN}"),
        *COMMON_FLAGS,
        *family.flags,
    )
    measured = Measured(counts=asyncio.run(count_items(family)))
    if family.not_run:
        return measured
    for log in logs.glob("*.log"):
        log.unlink()
    started = time.monotonic()
    try:
        with Pair(
            model,
            logs=logs,
            flags=flags,
            render_flags=family.front_flags,
            generate_flags=family.engine_flags,
        ) as pair:
            chats = family_chats(family, pair.replicas[0].hidden_size())
            measured.masks = asyncio.run(_masks(pair.url, family))
            ours = asyncio.run(ask_all(pair.render, chats))
        logger.info("%s: pair after %.0f s", name, time.monotonic() - started)
        with ExitStack() as stack:
            front = stock_render(model, (*flags, *family.front_flags), logs)
            monolith = Monolith(
                model,
                *(*flags, *family.front_flags, *family.engine_flags),
                *("--enable-scale-out", f"--worker-extension-cls={WORKER_EXTENSION}"),
                env={"VLLM_SERVER_DEV_MODE": "1"},
                log=logs / "monolith.log",
            )
            for server in (front, monolith):
                stack.callback(server.stop)
                server.start()
            for server in (front, monolith):
                server.wait_until_ready()
            add_encoder_rows(measured.counts, family, monolith)
            theirs = asyncio.run(ask_all(monolith, chats, restart=True))
            measured.killers = [name for name, answer in theirs.items() if answer is None]
            measured.cases = len(theirs) - len(measured.killers)
            measured.failures = [
                *(f"count of {count}" for count in measured.counts if not count.agrees),
                *_failures(ours, theirs),
            ]
            measured.stock = dict(ask_stock_pair(front.url, monolith, family))
    except ServerError:
        measured.error = _root_cause(logs)
    logger.info("%s: measured after %.0f s", name, time.monotonic() - started)
    return measured


async def ask_all(
    server: Server, chats: dict[str, dict[str, Any]], *, restart: bool = False
) -> dict[str, Answer | None]:
    """Ask until an engine dies, or with `restart` all; None is the answer that it died over."""
    answers: dict[str, Answer | None] = {}
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        # One after the other: then both engines compute the same batches, and agree exactly.
        for name, request in chats.items():
            answer = await _ask(client, server.url, request)
            died = answer.error is not None and await asyncio.to_thread(dies, server)
            answers[name] = None if died else answer
            if died and not restart:
                break
            if died:
                await asyncio.to_thread(_start_again, server)
    return answers


def _start_again(server: Server) -> None:
    server.stop()
    server.start()
    server.wait_until_ready()


async def _ask(client: httpx.AsyncClient, url: str, request: dict[str, Any]) -> Answer:
    try:
        return await ask(client, url, request)
    except httpx.TransportError as error:
        return Answer(0, error={"message": f"{type(error).__name__}: {error}"})


def _failures(ours: dict[str, Answer | None], theirs: dict[str, Answer | None]) -> Iterator[str]:
    for name, answer in theirs.items():
        our = ours.get(name)
        if answer is None:
            continue
        if our is None:
            yield f"{name}: the pair's engine died, vLLM's did not"
        elif any(entry["logprob"] is None for entry in answer.logprobs):
            yield f"{name}: vLLM's own server answers with logprobs that are no numbers"
        elif answer.error is not None and our.status == answer.status:
            # A model may take no supplied embeddings, but has to take its media.
            if "embeddings" not in name:
                yield f"{name}: both refused: {answer.error}"
        elif lines := differences(our, answer):
            yield f"{name}: {'; '.join(lines)}"
    for name, one in theirs.items():
        kind, _, which = name.partition(", ")
        if which == "one" and _said(one) == _said(theirs.get(f"{kind}, another")):
            # A model that says the same of any two media proves nothing.
            yield f"{name}: answered like another of the kind"


def _said(answer: Answer | None) -> list[Any]:
    if answer is None:
        return []
    return [answer.token_ids, [entry["logprob"] for entry in answer.logprobs]]


async def _masks(url: str, family: Family) -> dict[str, str]:
    masks = {}
    async with httpx.AsyncClient(timeout=300.0, trust_env=False) as client:
        for modality in family.modalities:
            request = media_chats(modality)["one"] | {"model": SERVED_NAME}
            response = await client.post(f"{url}/v1/chat/completions/render", json=request)
            if response.status_code != httpx.codes.OK:
                masks[modality] = f"refused: {response.json()['error']['message']}"
                continue
            places = response.json()["features"]["mm_placeholders"]
            masks[modality] = " + ".join(
                runs(place.get("is_embed")) for ranges in places.values() for place in ranges
            )
    return masks


def _root_cause(logs: Path) -> str:
    """The first error that the server which did not start has logged."""
    for log in (logs / "monolith.log", logs / "generate-0.log"):
        if log.is_file() and (errors := _ERROR.findall(log.read_text(errors="replace"))):
            return str(errors[0])[:300]
    return "no error in the logs"


_ERROR = re.compile(r"^.*?(?:\] | )((?:\w+Error|error): .+)$", re.MULTILINE)
