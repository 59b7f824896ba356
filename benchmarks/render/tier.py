"""Render services on a stand-in for the generate service, as real processes."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from benchmarks.serving.workloads import MODEL
from shared_protocol.serving_info import INFO_PATH
from tests.models.stock_pair import stock_render
from tests.pair import GenerateService, RenderService
from tests.processes import Server, free_port

_FLAGS: Final = (f"--served-model-name={MODEL}", "--max-model-len=8192")


class StandInService(Server):
    def __init__(self, info: Path, log: Path) -> None:
        port = free_port()
        super().__init__(
            [sys.executable, "-m", "benchmarks.render.stand_in", str(port), str(info)],
            {},
            f"http://127.0.0.1:{port}",
            "/ready",
            log,
        )


def ask_for_info(model: Path, logs: Path) -> Path:
    """Start a real generate service, and keep what it says of itself in a file."""
    service = GenerateService(model, *_FLAGS, log=logs / "generate.log")
    with service:
        info = httpx.get(service.url + INFO_PATH, timeout=30.0, trust_env=False)
    file = logs / "info.json"
    file.write_bytes(info.content)
    return file


@contextmanager
def stand_in(model: Path, logs: Path) -> Iterator[StandInService]:
    with StandInService(ask_for_info(model, logs), logs / "stand-in.log") as service:
        yield service


def render(
    model: Path, generate: StandInService, log: Path, env: Mapping[str, str] | None = None
) -> RenderService:
    return RenderService(model, [generate.url], *_FLAGS, log=log, env=env)


def stock(model: Path, logs: Path, env: Mapping[str, str] | None = None) -> Server:
    server = stock_render(model, _FLAGS, logs)
    server.env |= env or {}
    return server
