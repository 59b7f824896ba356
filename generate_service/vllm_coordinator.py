"""vLLM's coordinator of data-parallel engines, in a process that ends with the service.

It is the one process of vLLM's that is spawned without loading plug-ins.
"""

from typing import Any

from vllm.v1.engine.coordinator import DPCoordinatorProc

from generate_service import parent_watch

_run = DPCoordinatorProc.run_coordinator


def watch() -> None:
    """Have coordinators that this process starts from now on watch it."""
    DPCoordinatorProc.run_coordinator = staticmethod(run_watched)


def run_watched(*args: Any, **kwargs: Any) -> None:
    parent_watch.start()
    _run(*args, **kwargs)
