"""`python -m benchmarks.serving`: measure, keep the raw results, and write docs/benchmarks.md."""

import argparse
import importlib.metadata
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from vllm import version as vllm_version

from benchmarks.serving.page import PAGE, page
from benchmarks.serving.plot import PLOT, plot
from benchmarks.serving.rounds import Round, run_rounds
from benchmarks.serving.set_ups import set_ups
from benchmarks.serving.workloads import WORKLOADS
from deploy.demo.__main__ import CHECKPOINT as DEMO_CHECKPOINT
from deploy.demo.checkpoint import build as build_demo
from shared_protocol.startup import vllm_cpu
from tests.checkpoints import checkpoint

_RESULTS: Final = PAGE.parent / "benchmarks.json"


@dataclass(frozen=True)
class Model:
    """
    Attributes:
        requests: that a round has at least.
    """

    name: str
    build: Callable[[], Path]
    workloads: tuple[str, ...]
    requests: int


_MODELS: Final = {
    model.name: model
    for model in (
        Model("demo", lambda: build_demo(DEMO_CHECKPOINT), tuple(WORKLOADS), 6),
        # What limits it is what stands in front of its engine.
        Model("qwen3", lambda: checkpoint("qwen3"), ("text, streamed", "text, whole"), 64),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--model", action="append", choices=tuple(_MODELS))
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS))
    parser.add_argument("--concurrency", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, help="of a round, at least")
    parser.add_argument("--write", action="store_true", help="write the page and the raw results")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    vllm_cpu.prepare_environment()
    rounds = [
        entry for name in options.model or _MODELS for entry in _measure(_MODELS[name], options)
    ]
    if options.write:
        _RESULTS.write_text(json.dumps([asdict(entry) for entry in rounds], indent=1) + "\n")
    text = page(rounds, _about(options))
    if options.write:
        PAGE.write_text(text)
        PLOT.write_text(plot(rounds))
    else:
        print(text)


def _measure(model: Model, options: argparse.Namespace) -> list[Round]:
    logs = Path(tempfile.mkdtemp(prefix="tandem-bench-"))
    with set_ups(model.build(), logs) as compared:
        return list(
            run_rounds(
                model.name,
                compared,
                [WORKLOADS[name] for name in options.workload or model.workloads],
                options.concurrency or [1, 8, 32],
                rounds=options.rounds,
                requests=options.requests or model.requests,
            )
        )


def _about(options: argparse.Namespace) -> str:
    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in ("torch", "transformers", "uvicorn")
    )
    return (
        f"{options.rounds} rounds after one that warms up; {os.cpu_count()} cores; "
        f"{datetime.now(UTC):%Y-%m-%d}, vLLM {vllm_version.__version__}, {versions}."
    )


if __name__ == "__main__":
    main()
