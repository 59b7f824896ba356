"""`python -m tests.models [FAMILY ...]` measures families and writes docs/models.md.

Without names, all of them. The results of earlier runs are kept beside the checkpoints, so that the
page always shows every family that has been measured.
"""

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path

from shared_protocol.startup import vllm_cpu
from tests.models.families import FAMILIES

_RESULTS = Path(__file__).parents[2] / ".cache" / "models"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    names = parser.parse_args().families or list(FAMILIES)
    if unknown := set(names) - FAMILIES.keys():
        parser.error(f"no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    vllm_cpu.prepare_environment()
    # They import vLLM.
    from tests.models.measuring import measure, read_measured
    from tests.models.page import PAGE, page

    for name in names:
        logs = _RESULTS / f"{name}-logs"
        logs.mkdir(parents=True, exist_ok=True)
        result = measure(name, logs)
        (_RESULTS / f"{name}.json").write_text(json.dumps(asdict(result), indent=2))
        logging.info("%s: %d of %d %s", name, result.passed, result.cases, result.error or "")
    results = {
        file.stem: read_measured(json.loads(file.read_text())) for file in _RESULTS.glob("*.json")
    }
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
