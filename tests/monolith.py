"""vLLM's own server, the oracle that the pair is compared with."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.engine_settings import ENGINE_ENVIRONMENT, ENGINE_FLAGS
from tests.processes import Server, free_port

PROCESSOR_CACHE = "--mm-processor-cache-gb=4"
"""vLLM's default; for tests in which media come again by their names only."""


class Monolith(Server):
    """`vllm serve` on a checkpoint, in a process group of its own."""

    def __init__(
        self,
        model: Path,
        *flags: str,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """`flags` come after the common ones, so that they win; likewise `env`."""
        port = port or free_port()
        super().__init__(
            command=[
                *(sys.executable, "-m", "tests.vllm_cli", "serve", str(model)),
                *("--host=127.0.0.1", f"--port={port}"),
                *ENGINE_FLAGS,
                # Its server and its engine lose track of what the other has cached (a request that
                # is refused after its image was processed is enough), and then answer 500.
                "--mm-processor-cache-gb=0",
                *flags,
            ],
            env=ENGINE_ENVIRONMENT | dict(env or {}),
            url=f"http://127.0.0.1:{port}",
            ready_path="/health",
            log=log or Path(tempfile.gettempdir()) / f"tandem-monolith-{port}.log",
        )
