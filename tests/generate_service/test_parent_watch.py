"""Processes that end with the one that started them, however that one ended."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from generate_service import parent_watch
from tests.processes import REPOSITORY

# Of two generations, on a machine that is busy.
WITHIN_S = 8 * parent_watch.INTERVAL_S


def run_engine(method: str) -> None:
    """Stands for the engine: it has a worker, and neither looks at its parent."""
    parent_watch.start()
    worker = multiprocessing.Process(target=run_worker, args=(method,))
    worker.start()
    worker.join()


def run_worker(method: str) -> None:
    # A forked process has been given its watch by the one that it was forked from.
    if method == "spawn":
        parent_watch.start()
    print("running", os.getppid(), os.getpid(), flush=True)
    time.sleep(600)


def run_service(method: str) -> None:
    multiprocessing.set_start_method(method)
    parent_watch.start()
    engine = multiprocessing.Process(target=run_engine, args=(method,))
    engine.start()
    engine.join()
    print("the engine has ended", engine.exitcode, flush=True)
    time.sleep(600)


def start_service(method: str) -> tuple[subprocess.Popen[str], int, int]:
    command = [sys.executable, "-m", "tests.generate_service.test_parent_watch", method]
    service = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    said, *pids = service.stdout.readline().split()
    assert said == "running"
    engine, worker = map(int, pids)
    return service, engine, worker


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_killed_service_takes_its_engine_and_workers_with_it(method: str) -> None:
    service, engine, worker = start_service(method)
    with service:
        service.kill()
        assert gone(engine, worker)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_killed_engine_takes_its_workers_with_it_and_not_the_service(method: str) -> None:
    service, engine, worker = start_service(method)
    with service:
        os.kill(engine, signal.SIGKILL)
        assert gone(engine, worker)
        assert service.stdout is not None
        assert service.stdout.readline() == "the engine has ended -9\n"
        assert service.poll() is None
        service.kill()


def gone(*pids: int) -> bool:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        if not any(runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    run_service(sys.argv[1])
