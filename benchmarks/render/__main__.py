"""`python -m benchmarks.render`: measure the render tier, and write docs/benchmarks_render.md."""

import argparse
import logging
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from shared_protocol.startup import vllm_cpu

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks_render.md"

_HEAD: Final = """\
# The render tier by itself

Written by `make bench`: render services on a stand-in for the generate service, which answers at
once, with the model of the README's demo; medians of five rounds after one that warms up. Client,
stand-in and workers share {cores} cores, so that two workers never have one each.
"""


def main() -> None:
    vllm_cpu.prepare_environment()
    # They import vLLM.
    from benchmarks.render.measures import MEASURES, Table
    from benchmarks.render.tier import stand_in
    from deploy.demo.__main__ import CHECKPOINT
    from deploy.demo.checkpoint import build

    parser = argparse.ArgumentParser(prog="python -m benchmarks.render")
    parser.add_argument("--measure", action="append", choices=tuple(MEASURES))
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    model = build(CHECKPOINT)
    logs = Path(tempfile.mkdtemp(prefix="tandem-render-bench-"))

    def written(table: Table) -> str:
        head, *rows = table
        return "\n".join(
            "| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)
        )

    parts = [_HEAD.format(cores=os.cpu_count())]
    with stand_in(model, logs) as generate:
        for name in options.measure or MEASURES:
            measure = MEASURES[name]
            table = measure(model, generate, logs)
            parts.append(f"## {name.capitalize()}\n\n{measure.__doc__}\n\n{written(table)}\n")
            print(parts[-1], flush=True)
    parts.append(f"{datetime.now(UTC):%Y-%m-%d}.\n")
    if options.write:
        PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
