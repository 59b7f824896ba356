"""`python -m tests.soak`: mixed requests for a long time, and what every process holds meanwhile.

Writes docs/soak.md with `--write`. Exits with 1 if anything failed or grew.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from shared_protocol.startup import vllm_cpu

logger = logging.getLogger(__name__)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30.0, help="the end, if it comes first")
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/soak.md")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    vllm_cpu.prepare_environment()
    # They import vLLM.
    from tests.soak.page import PAGE, page
    from tests.soak.soaking import soak

    logs = Path(tempfile.mkdtemp(prefix="tandem-soak-"))
    start = time.monotonic()
    result = asyncio.run(
        soak(logs, minutes=given.minutes, requests=given.requests, seed=given.seed)
    )
    text = page(result, minutes=(time.monotonic() - start) / 60)
    print(text)
    if given.write:
        PAGE.write_text(text)
    for failure in result.failures():
        logger.error("%s", failure)
    sys.exit(bool(result.failures()))


if __name__ == "__main__":
    main()
