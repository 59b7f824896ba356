"""`python -m benchmarks.profiles`: a flame graph of each tier under load, into docs/profiles/."""

import asyncio
import itertools
import logging
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Final

from shared_protocol.startup import vllm_cpu

FOLDER: Final = Path(__file__).parents[1] / "docs" / "profiles"
SECONDS: Final = 20
CLIENTS: Final = 16
WORKLOADS: Final = ("text, streamed", "image, whole")


def main() -> None:
    vllm_cpu.prepare_environment()
    # They import vLLM.
    from benchmarks.serving.load import chat, run_load
    from benchmarks.serving.workloads import MODEL, Workload
    from benchmarks.serving.workloads import WORKLOADS as ALL
    from tests.checkpoints import checkpoint
    from tests.engine_priority import put_engine_last
    from tests.pair import Pair

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    FOLDER.mkdir(exist_ok=True)
    logs = Path(tempfile.mkdtemp(prefix="tandem-profiles-"))
    # A model so small that the services have most of the work.
    pair = Pair(checkpoint("gemma3"), logs=logs, flags=[f"--served-model-name={MODEL}"])
    with pair:
        put_engine_last(pair.replicas[0].pid)
        tiers = {"render": pair.render.pid, "generate": pair.replicas[0].pid}
        for name in WORKLOADS:
            stop = threading.Event()

            def load(workload: Workload = ALL[name], stop: threading.Event = stop) -> None:
                seeds = itertools.count()
                while not stop.is_set():
                    some = [workload.request(next(seeds)) for _ in range(4 * CLIENTS)]
                    asyncio.run(run_load(chat(pair.url), some, CLIENTS))

            thread = threading.Thread(target=load)
            thread.start()
            recorded = [
                subprocess.Popen(
                    [
                        *("py-spy", "record", "--rate=200", f"--duration={SECONDS}"),
                        *(f"--pid={pid}", f"--output={_file(tier, name)}"),
                    ]
                )
                for tier, pid in tiers.items()
            ]
            for process in recorded:
                process.wait()
            stop.set()
            thread.join()


def _file(tier: str, workload: str) -> Path:
    return FOLDER / f"{tier}_{workload.replace(', ', '_')}.svg"


if __name__ == "__main__":
    main()
