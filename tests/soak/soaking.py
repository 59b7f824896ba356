"""One soak: a pair, traffic, and samples of what its processes hold."""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.checkpoints import checkpoint
from tests.conftest import FLAGS
from tests.embeddings import hidden_size
from tests.engine_settings import SMALL_CACHES_ENVIRONMENT, SMALL_CACHES_FLAGS
from tests.pair import Pair
from tests.soak.traffic import Outcome, Traffic
from tests.soak.watching import (
    Growth,
    Sample,
    growth,
    line_count,
    processes_of,
    take_sample,
    unwanted_lines,
)

CLIENTS: Final = 8
_SAMPLE_INTERVAL_S: Final = 5.0
_GROWTH_LIMIT: Final = 1024.0
"""Bytes per request: one that stays whole holds many times that."""

_DESCRIPTORS_LIMIT: Final = 3 * CLIENTS
_LINES_LIMIT: Final = 3.0
"""Lines of a log per request: one of the access log, and what a refusal or a departure says."""

_RENDER_FLAGS: Final = ("--mm-processor-cache-gb=0.01",)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Soaked:
    """
    Attributes:
        growth: by process.
        unwanted: lines of the logs that tell of something forgotten, by service.
        lines_per_request: by service.
    """

    outcome: Outcome
    growth: dict[str, Growth]
    unwanted: dict[str, list[str]]
    lines_per_request: dict[str, float]

    def failures(self) -> list[str]:
        found = [f"{kind}: {what}" for kind, what in self.outcome.failures.items()]
        for name, grown in self.growth.items():
            fewest, most = grown.descriptors
            if grown.bytes_per_request > _GROWTH_LIMIT:
                found.append(f"{name} grew by {grown.bytes_per_request:.0f} bytes per request")
            if most - fewest > _DESCRIPTORS_LIMIT:
                found.append(f"{name} had from {fewest} to {most} descriptors")
        found += [f"{name} wrote: {lines[0]}" for name, lines in self.unwanted.items() if lines]
        for name, lines in self.lines_per_request.items():
            if lines > _LINES_LIMIT:
                found.append(f"{name} wrote {lines:.1f} lines per request")
        return found


async def soak(logs: Path, *, minutes: float, requests: int, seed: int) -> Soaked:
    """Send `requests` requests, or for `minutes`, whichever ends first."""
    model = checkpoint("gemma3")
    pair = Pair(
        model,
        logs=logs,
        flags=FLAGS,
        render_flags=_RENDER_FLAGS,
        generate_flags=SMALL_CACHES_FLAGS,
        generate_env=SMALL_CACHES_ENVIRONMENT,
    )
    with pair:
        services = {"render": pair.render, "generate": pair.replicas[0]}
        processes = processes_of({name: service.pid for name, service in services.items()})
        samples: dict[str, list[Sample]] = {name: [] for name in processes}
        traffic = Traffic(pair.url, seed=seed, hidden_size=hidden_size(model))

        async def watch() -> None:
            while True:
                await asyncio.sleep(_SAMPLE_INTERVAL_S)
                count = traffic.outcome.count
                for name, process in processes.items():
                    samples[name].append(await asyncio.to_thread(take_sample, process, count))
                logger.info("%d requests: %s", count, dict(traffic.outcome.statuses))

        end = time.monotonic() + 60 * minutes
        watching = asyncio.create_task(watch())
        await traffic.run(
            CLIENTS, lambda: traffic.outcome.count < requests and time.monotonic() < end
        )
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    return Soaked(
        traffic.outcome,
        {name: growth(each) for name, each in samples.items()},
        {name: unwanted_lines(service.log) for name, service in services.items()},
        {
            name: line_count(service.log) / traffic.outcome.count
            for name, service in services.items()
        },
    )
