"""Rounds in which every set-up gets the same requests, one set-up after the other."""

import asyncio
import itertools
import logging
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.serving.cpu_time import cpu_seconds, spent
from benchmarks.serving.load import run_load
from benchmarks.serving.set_ups import SetUp
from benchmarks.serving.workloads import Workload

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Round:
    """One set-up under one load, once.

    Attributes:
        model: the checkpoint.
        cpu_s: CPU seconds by role.
        load_before: of the machine, over the last minute.
    """

    model: str
    set_up: str
    workload: str
    concurrency: int
    seconds: float
    requests: int
    errors: list[str]
    tokens: int
    p50_s: float
    p95_s: float
    first_p50_s: float
    cpu_s: dict[str, float]
    load_before: float


def run_rounds(
    model: str,
    set_ups: Sequence[SetUp],
    workloads: Sequence[Workload],
    concurrencies: Sequence[int],
    *,
    rounds: int,
    requests: int,
) -> Iterator[Round]:
    """Yield what was measured; the first round of each warms up and is not yielded.

    Args:
        requests: how many a round has; one for each client if those are more.
    """
    seeds = itertools.count()
    for workload, concurrency in itertools.product(workloads, concurrencies):
        for number in range(rounds + 1):
            count = max(requests, concurrency)
            bodies = [workload.request(next(seeds)) for _ in range(count)]
            turn = number % len(set_ups)
            for set_up in (*set_ups[turn:], *set_ups[:turn]):
                if workload.stream and not set_up.streams:
                    continue
                measured = _round(model, set_up, workload, concurrency, bodies)
                logger.info("%s", measured)
                if number:
                    yield measured


def _round(
    model: str,
    set_up: SetUp,
    workload: Workload,
    concurrency: int,
    bodies: list[dict[str, object]],
) -> Round:
    load = psutil.getloadavg()[0]
    before = cpu_seconds(set_up.processes)
    answers, seconds = asyncio.run(run_load(set_up.ask, bodies, concurrency))
    used = spent(before, cpu_seconds(set_up.processes))
    good = [answer for answer in answers if answer.error is None]
    return Round(
        model=model,
        set_up=set_up.name,
        workload=workload.name,
        concurrency=concurrency,
        seconds=seconds,
        requests=len(answers),
        errors=[answer.error for answer in answers if answer.error is not None],
        tokens=sum(answer.tokens for answer in good),
        p50_s=_quantile([answer.whole_s for answer in good], 50),
        p95_s=_quantile([answer.whole_s for answer in good], 95),
        first_p50_s=_quantile([answer.first_s for answer in good], 50),
        cpu_s=used,
        load_before=load,
    )


def _quantile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
