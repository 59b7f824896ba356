"""docs/soak.md: what a soak showed."""

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path

from shared_protocol.startup.vllm_cpu import is_installed
from tests.soak.soaking import CLIENTS, Soaked

PAGE = Path(__file__).parents[2] / "docs" / "soak.md"

_HEAD = """\
# Soak

Written by `make soak`: a pair on the CPU with a tiny model, and {clients} clients that send chats
with and without images and supplied embeddings, requests over the whole API, wrong ones and
garbage; some read slowly, and one in six leaves in the middle of its answer.

{count} requests in {minutes:.0f} minutes: {statuses}.

| process | memory at the end | growth per request | descriptors |
|---|---|---|---|
"""


def page(soaked: Soaked, *, minutes: float) -> str:
    counts = sorted(soaked.outcome.statuses.items())
    head = _HEAD.format(
        clients=CLIENTS,
        count=soaked.outcome.count,
        minutes=minutes,
        statuses=", ".join(f"{count} {_named(status)}" for status, count in counts),
    )
    rows = [
        f"| {name} | {grown.memory / 2**20:.0f} MiB | {grown.bytes_per_request:.0f} bytes "
        f"| {grown.descriptors[0]} to {grown.descriptors[1]} |"
        for name, grown in soaked.growth.items()
    ]
    return head + "\n".join([*rows, "", *_notes(soaked), ""]) + _made_with()


def _named(status: str) -> str:
    return f"were answered {status}" if status[0].isdigit() else status


def _notes(soaked: Soaked) -> list[str]:
    lines = [
        f"- {name}: {per_request:.1f} lines of log per request; "
        f"{len(soaked.unwanted[name])} tell of an exception or a task that nobody looked after."
        for name, per_request in soaked.lines_per_request.items()
    ]
    failures = soaked.failures()
    return [*lines, *(f"- **failed**: {failure}" for failure in failures)]


def _made_with() -> str:
    vllm = "vllm-cpu" if is_installed("vllm-cpu") else "vllm"
    version = importlib.metadata.version(vllm)
    return (
        "\nGrowth is the slope after a quarter of the requests. "
        f"{vllm} {version}, {datetime.now(UTC):%Y-%m-%d}.\n"
    )
