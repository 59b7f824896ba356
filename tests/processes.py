"""Servers under test as real processes, each in a process group of its own."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

REPOSITORY = Path(__file__).parent.parent
_LOG_TAIL_LINES = 60
_PROGRESS_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerError(Exception):
    """The server did not become ready, or ended by itself."""


class Server:
    """A command that serves HTTP. As a context manager it is ready inside and gone afterwards."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        url: str,
        ready_path: str,
        log: Path,
        *,
        ready_timeout_s: float = 300.0,
    ) -> None:
        """`env` is laid over this process's environment; `log` gets stdout and stderr."""
        self.command = list(command)
        self.env = dict(env)
        self.url = url
        self.ready_path = ready_path
        self.log = log
        self.ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._started().pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        return self._started().poll()

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=REPOSITORY,
                env=os.environ | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        start = time.monotonic()
        report_at = start + _PROGRESS_INTERVAL_S
        while not self.is_ready():
            now = time.monotonic()
            if self.exit_code is not None:
                raise ServerError(self._describe(f"ended with exit code {self.exit_code}"))
            if now - start > self.ready_timeout_s:
                raise ServerError(self._describe(f"not ready after {self.ready_timeout_s:.0f} s"))
            if now > report_at:
                logger.info("%s: %.0f s, %s", self.url, now - start, self.log_tail(1))
                report_at += _PROGRESS_INTERVAL_S
            time.sleep(0.2)

    def is_ready(self) -> bool:
        try:
            # trust_env: a proxy of the machine must not stand between a test and its server.
            answer = httpx.get(self.url + self.ready_path, timeout=5.0, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def wait_for_exit(self, timeout_s: float) -> int:
        """Wait until the server ends by itself, and give its exit code."""
        try:
            return self._started().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerError(self._describe(f"still running after {timeout_s:.0f} s")) from None

    def stop(self, grace_s: float = 15.0) -> None:
        """Terminate the process, then kill whatever is left of its group."""
        process = self._started()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                logger.warning("%s does not end on SIGTERM", self.command)
        self.kill()

    def kill(self) -> None:
        """Kill the whole group: engine processes outlive a server that dies without warning."""
        process = self._started()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError(f"{self.command} was not started")
        return self._process

    def _describe(self, what: str) -> str:
        return f"{what}: {' '.join(self.command)}\n--- {self.log}\n{self.log_tail()}"
