"""The demo's two processes: started, watched until they are ready, stopped together."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    # Two services and vLLM's worker share the machine; with a thread each for every core they
    # would wait for one another.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
}


class ServiceFailed(SystemExit):
    """The service ended by itself; the message is what it said last."""


class Service:
    """One service in a process group of its own."""

    def __init__(self, name: str, command: Sequence[str], url: str, log: Path) -> None:
        self.name = name
        self.url = url
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | ENVIRONMENT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Ask it to end; it takes seconds."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, or for so long."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kill what is left of its group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def is_ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            last = self._log.read_text(errors="replace").splitlines()[-30:]
            raise ServiceFailed("\n".join([f"{self.name} ended; the end of {self._log}:", *last]))
        try:
            answer = httpx.get(f"{self.url}/ready", timeout=2.0, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK


def wait_until_ready(services: Sequence[Service]) -> None:
    """Wait for all of them, and show that it goes on.

    Raises:
        ServiceFailed: if one ends, or takes too long.
    """
    start = time.monotonic()
    waiting = list(services)
    while waiting:
        seconds = time.monotonic() - start
        for service in [service for service in waiting if service.is_ready()]:
            waiting.remove(service)
            print(f"{service.name} is ready after {seconds:.0f} s".ljust(60))
        if seconds > READY_TIMEOUT_S:
            raise ServiceFailed(f"{waiting[0].name} is not ready after {READY_TIMEOUT_S:.0f} s")
        if waiting:
            names = " and ".join(service.name for service in waiting)
            # A terminal has one line that is written over; a file would hold each of them.
            terminal = sys.stdout.isatty()
            print(
                f"waiting for {names}: {seconds:.0f} s", end="\r" if terminal else "\n", flush=True
            )
            time.sleep(1.0 if terminal else 5.0)


@contextmanager
def running(services: Sequence[Service]) -> Iterator[None]:
    """Start all of them; they are ready inside the context, and gone after it."""
    try:
        for service in services:
            service.start()
        wait_until_ready(services)
        yield
    finally:
        stop(services)


def stop(services: Sequence[Service]) -> None:
    """End all of them at once; whoever does not want to wait for that interrupts it again."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    try:
        for service in services:
            service.terminate()
        print("Stopping both services.", flush=True)
        for service in services:
            service.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for service in services:
            service.kill()
