"""CPU seconds of running servers by the work of their processes, as the system counts them."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import psutil

# What vLLM calls the processes that it starts.
_ENGINE_TITLES: Final = ("VLLM::EngineCore", "VLLM::Worker")
ENGINE: Final = "engine"


def cpu_seconds(servers: Mapping[str, int]) -> dict[str, float]:
    """Return seconds used so far, by role.

    Args:
        servers: the process that was started for each role, such as "render"; the processes below
            it that hold the model count as "engine", the others to the role.
    """
    seconds: Counter[str] = Counter()
    for role, pid in servers.items():
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            times = process.cpu_times()
            title = " ".join(process.cmdline())
            named = ENGINE if title.startswith(_ENGINE_TITLES) else role
            seconds[named] += times.user + times.system
    return dict(seconds)


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {role: after[role] - before.get(role, 0.0) for role in after}
