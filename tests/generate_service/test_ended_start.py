"""A real generate service ends while its engine starts: nothing of it is left."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shared_protocol.startup.server import DRAIN_S
from tests.checkpoints import checkpoint
from tests.pair import GenerateService

pytestmark = pytest.mark.engine

logger = logging.getLogger(__name__)

START_WITHIN_S = 120.0
GONE_WITHIN_S = 5.0
SPAWNED = "spawn_main"
"""In the command of what multiprocessing spawns, until vLLM gives the process its title."""

ENGINE, WORKER = 1, 2
"""Generations below the service."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GenerateService]:
    service = GenerateService(checkpoint("qwen3"), log=tmp_path / "generate.log")
    service.start()
    yield service
    service.kill()


# From when the process is there: it begins to import vLLM, does so, and an engine then waits for
# the service's handshake.
@pytest.mark.parametrize(
    ("generation", "after_s", "number"),
    [
        (ENGINE, 0.0, signal.SIGKILL),
        pytest.param(ENGINE, 1.0, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(ENGINE, 3.0, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(WORKER, 0.0, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(WORKER, 1.0, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left(
    service: GenerateService, generation: int, after_s: float, number: signal.Signals
) -> None:
    wait_for_spawned(psutil.Process(service.pid), generation)
    time.sleep(after_s)
    started = psutil.Process(service.pid).children(recursive=True)
    assert not service.is_ready()
    os.kill(service.pid, number)
    expected = -number if number == signal.SIGKILL else 0
    assert service.wait_for_exit(DRAIN_S + GONE_WITHIN_S) == expected
    began = time.monotonic()
    _, left = psutil.wait_procs(started, timeout=GONE_WITHIN_S)
    assert not left
    assert not in_session(service.pid)
    logger.info("%d processes were gone after %.2f s", len(started), time.monotonic() - began)


def wait_for_spawned(process: psutil.Process, generation: int) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while not any(depth == generation for depth in spawned_below(process)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def spawned_below(process: psutil.Process, depth: int = 1) -> Iterator[int]:
    for child in process.children():
        try:
            command = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        if SPAWNED in command or "EngineCore" in command or "Worker" in command:
            yield depth
            yield from spawned_below(child, depth + 1)


def in_session(session: int) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if runs_in(process, session)]


def runs_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
