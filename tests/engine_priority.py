"""Engines that leave the cores to the services in front of them, as where they have a GPU."""

import os

import psutil


def put_engine_last(pid: int) -> None:
    """Have the engine below the process `pid` take what others leave of the cores.

    On the CPU build its processes compute, or spin while they wait for one another: what is
    measured of the services would be how long they wait behind them.
    """
    for process in psutil.Process(pid).children(recursive=True):
        if " ".join(process.cmdline()).startswith("VLLM::"):
            for thread in process.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, 19)
