"""What processes hold over time, and whether it grows."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil

_WARM_UP: Final = 0.25
"""Share of the requests after which caches, pools and arenas are taken to be filled."""

UNWANTED: Final = re.compile(
    r"never retrieved|was never awaited|was destroyed but it is pending|Unclosed|"
    r"Traceback \(most recent call last\)"
)

_ANSWERED: Final = "[shared_protocol.fault_boundary] a request failed"
"""In front of the traceback of a fault that a client was told of."""


@dataclass(frozen=True)
class Sample:
    """
    Attributes:
        requests: how many had been answered.
        memory: resident bytes that are the process's own.
        descriptors: open files and sockets.
    """

    requests: int
    memory: int
    descriptors: int


@dataclass(frozen=True)
class Growth:
    """
    Attributes:
        memory: the last sample's, in bytes.
        bytes_per_request: slope of the memory over the requests after the warm-up.
        descriptors: the fewest and the most after the warm-up.
    """

    memory: int
    bytes_per_request: float
    descriptors: tuple[int, int]


def take_sample(process: psutil.Process, requests: int) -> Sample:
    with process.oneshot():
        memory = process.memory_full_info().uss
        return Sample(requests, memory, process.num_fds())


def growth(samples: Sequence[Sample]) -> Growth:
    warm = [s for s in samples if s.requests >= samples[-1].requests * _WARM_UP]
    slope, _ = np.polyfit([s.requests for s in warm], [s.memory for s in warm], 1)
    descriptors = [s.descriptors for s in warm]
    return Growth(samples[-1].memory, float(slope), (min(descriptors), max(descriptors)))


def processes_of(pids: Mapping[str, int]) -> dict[str, psutil.Process]:
    """The services' own processes, and those that they have started, by what they are called."""
    found = {}
    for name, pid in pids.items():
        service = psutil.Process(pid)
        found[name] = service
        for child in service.children(recursive=True):
            title = " ".join(child.cmdline()).strip()
            if title.startswith("VLLM::"):
                found[f"{name}, {title.removeprefix('VLLM::')}"] = child
    return found


def unwanted_lines(log: Path) -> list[str]:
    """Lines that tell of something forgotten; not those of a fault that was answered with 500."""
    lines = log.read_text(errors="replace").splitlines()
    return [
        line
        for before, line in itertools.pairwise(["", *lines])
        if UNWANTED.search(line) and not before.endswith(_ANSWERED)
    ]


def line_count(log: Path) -> int:
    with log.open("rb") as lines:
        return sum(1 for _ in lines)
