"""A scripted replica in a process of its own, which can be stopped as a debugger or a host does.

``python -m tests.render_service.replica_process PORT BEHAVIOUR`` writes a line for each request
that it has received in full.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

import httpx

from shared_protocol.frames import encode_frame
from shared_protocol.serving_info import INFO_PATH
from tests.processes import REPOSITORY, free_port
from tests.render_service.fake_generate import (
    FIRST,
    LAST,
    Behaviour,
    Exchange,
    FakeGenerate,
    answer,
    hang_after,
)

RECEIVED: Final = "received"


async def stream_for_ever(exchange: Exchange) -> None:
    await exchange.start()
    while not exchange.client_left.is_set():
        await exchange.body(encode_frame(FIRST))
        await asyncio.sleep(0.02)


BEHAVIOURS: Final[dict[str, Behaviour]] = {
    "answer": answer(FIRST, LAST),
    "stream": stream_for_ever,
    "prefill": hang_after(),
}


class ReplicaProcess:
    """Ready inside its context, and gone afterwards."""

    def __init__(self, behaviour: str, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._command = [
            *(sys.executable, "-m", "tests.render_service.replica_process"),
            *(str(self.port), behaviour),
        ]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, cwd=REPOSITORY, stdout=log)
        deadline = time.monotonic() + 20
        while not self._is_ready():
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(self.url + INFO_PATH, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """Let it do nothing at all from now on; its kernel still takes connections and bytes."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def received(self) -> int:
        """How many requests it has received in full."""
        return self._log.read_text().count(RECEIVED)


def main(port: int, behaviour: str) -> None:
    async def noted(exchange: Exchange) -> None:
        print(RECEIVED, flush=True)
        await BEHAVIOURS[behaviour](exchange)

    with FakeGenerate(port) as replica:
        replica.behaviour = noted
        signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
