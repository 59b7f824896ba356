"""`python -m benchmarks.serving`: measure, keep the raw results, and write docs/benchmarks.md."""

import argparse
import importlib.metadata
import json
import logging
import os
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.serving.page import PAGE, page
from benchmarks.serving.rounds import run_rounds
from benchmarks.serving.set_ups import set_ups
from benchmarks.serving.workloads import WORKLOADS
from deploy.demo.__main__ import CHECKPOINT as DEMO_CHECKPOINT
from deploy.demo.checkpoint import build as build_demo
from shared_protocol.startup import vllm_cpu
from tests.checkpoints import FAMILIES, checkpoint

_RESULTS: Final = PAGE.parent / "benchmarks.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--model", default="demo", choices=("demo", *FAMILIES))
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS))
    parser.add_argument("--concurrency", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=8, help="of each client in a round")
    parser.add_argument("--write", action="store_true", help="write the page and the raw results")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    vllm_cpu.prepare_environment()
    model = build_demo(DEMO_CHECKPOINT) if options.model == "demo" else checkpoint(options.model)
    logs = Path(tempfile.mkdtemp(prefix="tandem-bench-"))
    with set_ups(model, logs) as compared:
        rounds = list(
            run_rounds(
                compared,
                [WORKLOADS[name] for name in options.workload or WORKLOADS],
                options.concurrency or [1, 8, 32],
                rounds=options.rounds,
                requests=options.requests,
            )
        )
    if options.write:
        _RESULTS.write_text(json.dumps([asdict(entry) for entry in rounds], indent=1) + "\n")
    text = page(rounds, _about(options))
    if options.write:
        PAGE.write_text(text)
    else:
        print(text)


def _about(options: argparse.Namespace) -> str:
    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in ("torch", "transformers", "uvicorn")
    )
    return (
        f"Checkpoint: {options.model}; {options.rounds} rounds of {options.requests} requests a "
        f"client after one that warms up; {os.cpu_count()} cores; {datetime.now(UTC):%Y-%m-%d}, "
        f"{versions}."
    )


if __name__ == "__main__":
    main()
