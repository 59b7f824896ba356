"""vLLM's processes on this host: each ends with the one that started it, an engine with its worker.

The plug-in would be too late for the engine, which loads it once the service has answered its
handshake, and waits minutes for that; and the coordinator of data-parallel engines loads none.
"""

import os
from typing import Any

from vllm.v1.engine.coordinator import DPCoordinatorProc
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from generate_service.parent_watch import Watched

_run_engine = EngineCoreProc.run_engine_core
_run_coordinator = DPCoordinatorProc.run_coordinator
_shut_down = MultiprocExecutor.shutdown


def watch() -> None:
    """Have what this process starts from now on watch it."""
    EngineCoreProc.run_engine_core = Watched(run_engine)
    DPCoordinatorProc.run_coordinator = Watched(run_coordinator)


def run_engine(*args: Any, **kwargs: Any) -> None:
    # It may have loaded them already, in the process that it was forked from.
    if not isinstance(WorkerProc.worker_main, Watched):
        WorkerProc.worker_main = Watched(WorkerProc.worker_main)
        MultiprocExecutor.shutdown = shut_down
    _run_engine(*args, **kwargs)


def shut_down(executor: MultiprocExecutor) -> None:
    """End the engine's process at once if a worker has died, after vLLM has logged which.

    vLLM would first wait for the other workers and then for its own queues, five seconds in which
    requests are still taken. The workers that are left end with this process.
    """
    if executor.is_failed and not executor.parallel_config.enable_fault_tolerance:
        os._exit(1)
    _shut_down(executor)


def run_coordinator(*args: Any, **kwargs: Any) -> None:
    _run_coordinator(*args, **kwargs)
