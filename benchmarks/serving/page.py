"""docs/benchmarks.md: each set-up as a ratio to `vllm serve` in the same rounds."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.serving.cpu_time import ENGINE
from benchmarks.serving.rounds import Round
from benchmarks.serving.set_ups import MONOLITH

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks.md"

_HEAD: Final = """\
# Benchmarks

Written by `make bench`: `vllm serve`, the pair, and stock vLLM's own pair (its render server, its
engine server and its derender endpoint, with a client that carries the answers from one to the
next; it has no stream of chats) on one checkpoint and one machine, all running, each asked in its
turn, with the same requests, of which none comes twice. Everything but the first row of each group
is a ratio to `vllm serve`, of medians over the rounds. Text is 64 tokens or so in and 64 out, an
image a PNG of 512 x 512 and 16 out. `demo` is the checkpoint of the README (135 million weights);
`qwen3` is so small that what stands in front of the engine is the limit. The engines run at the
lowest priority, so that they leave the cores to the services, as where there is a GPU. CPU is what
the operating system counts, of all processes but the engine's core and workers; "of engine host" is
without the render tier; "first" is the first token.

![p50 over clients](benchmarks.svg)

| model | load | clients | set-up | req/s | p50 | p95 | first | CPU | of engine host | errors |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def page(rounds: Sequence[Round], about: str) -> str:
    lines = []
    for (model, workload, concurrency), group in itertools.groupby(
        rounds, key=lambda entry: (entry.model, entry.workload, entry.concurrency)
    ):
        by_name: dict[str, list[Round]] = {}
        for entry in group:
            by_name.setdefault(entry.set_up, []).append(entry)
        for name in sorted(by_name, key=lambda name: name != MONOLITH):
            cells = " | ".join(_cells(by_name[name], by_name[MONOLITH]))
            lines.append(f"| {model} | {workload} | {concurrency} | {name} | {cells} |")
    return _HEAD + "\n".join(lines) + "\n\n" + about + "\n"


def _cells(mine: list[Round], monolith: list[Round]) -> list[str]:
    absolute = mine is monolith
    columns: list[tuple[Callable[[Round], float], str]] = [
        (lambda entry: (entry.requests - len(entry.errors)) / entry.seconds, "{:.1f}"),
        (lambda entry: 1000 * entry.p50_s, "{:.0f} ms"),
        (lambda entry: 1000 * entry.p95_s, "{:.0f} ms"),
        (lambda entry: 1000 * entry.first_p50_s, "{:.0f} ms"),
        (lambda entry: 1000 * _cpu(entry), "{:.1f} ms"),
        (lambda entry: 1000 * _cpu(entry, without="render"), "{:.1f} ms"),
    ]
    cells = []
    for measure, form in columns:
        own, other = (statistics.median(map(measure, rounds)) for rounds in (mine, monolith))
        ratio = f"{own / other:.2f}" if other else "-"
        cells.append(form.format(own) if absolute else ratio)
    return [*cells, str(sum(len(entry.errors) for entry in mine))]


def _cpu(entry: Round, *, without: str = "") -> float:
    """Seconds for a request."""
    front = (used for role, used in entry.cpu_s.items() if role not in (ENGINE, without))
    return sum(front) / entry.requests
