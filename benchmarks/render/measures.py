"""What is measured of the render tier, each a table of its own."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from benchmarks.render import tier
from benchmarks.render.workloads import long_text, one_image, short_text, turn
from benchmarks.serving.cpu_time import cpu_seconds
from benchmarks.serving.load import Answered, Ask, chat, run_load
from tests.processes import Server

ROUNDS: Final = 5
CLIENTS: Final = 8
LONG_PROMPT: Final = 8_000

Table = list[list[str]]


def scaling(model: Path, generate: tier.StandInService, logs: Path) -> Table:
    """Requests a second of one worker and of two, and what they cost."""
    rows = [["load", "workers", "req/s", "of one", "CPU of the workers a request", "PSS of one"]]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(tier.render(model, generate, logs / f"render-{number}.log"))
            for number in range(2)
        ]
        for name, make, count in (("text", short_text, 800), ("image", one_image, 160)):
            measured: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
            for number in range(ROUNDS + 1):
                for used in (1, 2):
                    bodies = [make(next(_seeds)) for _ in range(count)]
                    result = _rate(workers[:used], bodies)
                    if number:
                        measured[used].append(result)
            one = statistics.median(rate for rate, _ in measured[1])
            for used, results in measured.items():
                rate, cpu = (statistics.median(column) for column in zip(*results, strict=True))
                rows.append(
                    [
                        name,
                        str(used),
                        f"{rate:.0f}",
                        f"{rate / one:.2f}",
                        f"{1000 * cpu / count:.2f} ms",
                        f"{_pss(workers[0]) / 2**20:.0f} MiB",
                    ]
                )
    return rows


def turns(model: Path, generate: tier.StandInService, logs: Path) -> Table:
    """The render tier's CPU for the fifth turn of a chat, with and without four images before."""
    rows = [["fifth turn of a chat with", "CPU of the render tier", "of the text's"]]
    chats = 40
    with tier.render(model, generate, logs / "render-turns.log") as worker:
        spent: dict[int, list[float]] = {0: [], 4: []}
        for number, images in itertools.product(range(ROUNDS + 1), spent):
            seeds = [next(_seeds) for _ in range(chats)]
            for earlier in range(1, 5):
                _rate([worker], [turn(seed, earlier, images=images) for seed in seeds], clients=1)
            last = [turn(seed, 5, images=images) for seed in seeds]
            _, cpu = _rate([worker], last, clients=1)
            if number:
                spent[images].append(cpu / chats)
    text = statistics.median(spent[0])
    for images, results in spent.items():
        cpu = statistics.median(results)
        name = f"{images} images" if images else "text only"
        rows.append([name, f"{1000 * cpu:.1f} ms", f"{cpu / text:.2f}"])
    return rows


def long_prompts(model: Path, generate: tier.StandInService, logs: Path) -> Table:
    """Prompts of 8,000 tokens at the `/render` endpoint: ours, and that of `vllm launch render`,
    both also with vLLM's switch for another tokenizer (`VLLM_USE_FASTOKENS=1`)."""
    rows = [["render service", "clients", "req/s", "of stock's", "CPU a request"]]
    with ExitStack() as stack:
        services = {
            f"{name}{suffix}": stack.enter_context(start(env))
            for suffix, env in (("", {}), (", fastokens", {"VLLM_USE_FASTOKENS": "1"}))
            for name, start in (
                ("stock", partial(tier.stock, model, logs)),
                ("ours", partial(tier.render, model, generate, logs / "render-long.log")),
            )
        }
        for clients in (1, CLIENTS):
            measured: dict[str, list[tuple[float, float]]] = {name: [] for name in services}
            for number, name in itertools.product(range(ROUNDS + 1), services):
                bodies = [long_text(next(_seeds), LONG_PROMPT) for _ in range(40)]
                result = _rate([services[name]], bodies, clients=clients, ask=rendered)
                if number:
                    measured[name].append(result)
            stock = statistics.median(rate for rate, _ in measured["stock"])
            for name, results in measured.items():
                rate, cpu = (statistics.median(column) for column in zip(*results, strict=True))
                ratio = f"{rate / stock:.2f}"
                rows.append([name, str(clients), f"{rate:.1f}", ratio, f"{1000 * cpu / 40:.1f} ms"])
    return rows


def start_up(model: Path, generate: tier.StandInService, logs: Path) -> Table:
    """Seconds from the start of a process until it is ready."""
    rows = [["render service", "seconds until ready", "of stock's", "PSS"]]
    measured: dict[str, list[tuple[float, float]]] = {"stock": [], "ours": []}
    for number in range(ROUNDS + 1):
        for name, server in (
            ("stock", tier.stock(model, logs)),
            ("ours", tier.render(model, generate, logs / "render-start.log")),
        ):
            start = time.perf_counter()
            with server:
                seconds = time.perf_counter() - start
                if number:
                    measured[name].append((seconds, _pss(server)))
    stock = statistics.median(seconds for seconds, _ in measured["stock"])
    for name, results in measured.items():
        seconds, pss = (statistics.median(column) for column in zip(*results, strict=True))
        rows.append([name, f"{seconds:.1f}", f"{seconds / stock:.2f}", f"{pss / 2**20:.0f} MiB"])
    return rows


MEASURES: Final[dict[str, Callable[[Path, tier.StandInService, Path], Table]]] = {
    "scaling": scaling,
    "turns": turns,
    "long prompts": long_prompts,
    "start-up": start_up,
}

_seeds: Final = itertools.count(1)


def rendered(url: str) -> Ask:
    """Ask for the rendered form of a chat, and let the client not read it."""

    async def ask(session: aiohttp.ClientSession, request: dict[str, Any]) -> Answered:
        start = time.perf_counter()
        async with session.post(f"{url}/v1/chat/completions/render", json=request) as response:
            response.raise_for_status()
            await response.read()
        whole = time.perf_counter() - start
        return Answered(whole, whole, 0)

    return ask


def _rate(
    workers: Sequence[Server],
    bodies: list[dict[str, Any]],
    *,
    clients: int = CLIENTS,
    ask: Callable[[str], Ask] = chat,
) -> tuple[float, float]:
    """Return requests a second, and CPU seconds of all workers."""
    asked = _in_turn([ask(worker.url) for worker in workers])
    pids = {str(number): worker.pid for number, worker in enumerate(workers)}
    before = sum(cpu_seconds(pids).values())
    answers, seconds = asyncio.run(run_load(asked, bodies, clients))
    wrong = [answer.error for answer in answers if answer.error is not None]
    assert not wrong, wrong[:3]
    return len(bodies) / seconds, sum(cpu_seconds(pids).values()) - before


def _in_turn(asks: Sequence[Ask]) -> Ask:
    turns_of: Iterator[Ask] = itertools.cycle(asks)

    async def ask(session: aiohttp.ClientSession, request: dict[str, Any]) -> Answered:
        return await next(turns_of)(session, request)

    return ask


def _pss(server: Server) -> float:
    root = psutil.Process(server.pid)
    return sum(
        float(process.memory_full_info().pss) for process in (root, *root.children(recursive=True))
    )
