"""Processes that end with the one that started them, however that one ended."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

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


class Slow:
    """Stands for what takes long to import: it is never unpickled to the end."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return unpickle_for_long, ()


def unpickle_for_long() -> None:
    print("running", os.getpid(), os.getpid(), flush=True)
    time.sleep(600)


def run_service_of_importing_engine(_: str) -> None:
    engine = multiprocessing.get_context("spawn").Process(
        target=parent_watch.Watched(run_engine), args=(Slow(),)
    )
    engine.start()
    time.sleep(600)


def start_service(method: str, run: str = "run_service") -> tuple[subprocess.Popen[str], int, int]:
    command = [sys.executable, "-m", "tests.generate_service.test_parent_watch", run, method]
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


def test_a_killed_service_takes_an_engine_with_it_that_still_imports() -> None:
    service, engine, _ = start_service("spawn", "run_service_of_importing_engine")
    with service:
        service.kill()
        assert gone(engine)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_process_has_one_watch_that_its_target_and_a_plug_in_both_start(method: str) -> None:
    command = [sys.executable, "-m", "tests.generate_service.test_parent_watch"]
    done = subprocess.run(
        [*command, "run_service_of_two_starts", method],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"


def run_service_of_two_starts(method: str) -> None:
    multiprocessing.set_start_method(method)
    parent_watch.start()
    engine = multiprocessing.Process(target=parent_watch.Watched(count_watches))
    engine.start()
    engine.join()


def count_watches() -> None:
    parent_watch.start()
    print(sum(thread.name == parent_watch.NAME for thread in threading.enumerate()), flush=True)


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
    globals()[sys.argv[1]](sys.argv[2])
