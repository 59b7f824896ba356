"""The demo's two processes: started, watched until they are ready, stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

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
    """One service in a process group of its own; gone after the context."""

    def __init__(self, name: str, command: Sequence[str], url: str, log: Path) -> None:
        self.name = name
        self.url = url
        self._command = command
        self._log = log

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | ENVIRONMENT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def is_ready(self) -> bool:
        if self._process.poll() is not None:
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
