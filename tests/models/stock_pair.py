"""Stock vLLM's own split: its render server in front of its engine server."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.engine_settings import ENGINE_ENVIRONMENT
from tests.models.families import MAKERS, Family, chat, text
from tests.models.requests import ASKED
from tests.monolith import Monolith
from tests.processes import Server, free_port

PASSED, REFUSED, DIED, WRONG = "passed", "refused", "engine died", "another answer"
_DEATH_SHOWS_WITHIN_S = 4.0


def stock_render(model: Path, flags: tuple[str, ...], logs: Path) -> Server:
    port = free_port()
    command = [
        *(sys.executable, "-m", "tests.vllm_cli", "launch", "render", str(model)),
        *("--host=127.0.0.1", f"--port={port}", "--dtype=float32", *flags),
    ]
    url = f"http://127.0.0.1:{port}"
    return Server(command, ENGINE_ENVIRONMENT, url, "/health", logs / "stock-render.log")


def ask_stock_pair(render: str, monolith: Monolith, family: Family) -> Iterator[tuple[str, str]]:
    """One request a modality, with media that the engine has not seen before."""
    for modality in family.modalities:
        if monolith.exit_code is not None or not monolith.is_ready():
            monolith.stop()
            monolith.start()
            monolith.wait_until_ready()
        request = chat(modality, [text("Look:"), MAKERS[modality][1](99), text("So?")]) | ASKED
        yield modality, _through_stock_pair(render, monolith, request)


def _through_stock_pair(render: str, monolith: Monolith, request: dict[str, Any]) -> str:
    with httpx.Client(timeout=300.0, trust_env=False) as client:
        rendered = client.post(f"{render}/v1/chat/completions/render", json=request)
        if rendered.status_code != httpx.codes.OK:
            return REFUSED
        try:
            generated = client.post(f"{monolith.url}/inference/v1/generate", json=rendered.json())
        except httpx.TransportError:
            return DIED
        if generated.status_code != httpx.codes.OK:
            return DIED if dies(monolith) else REFUSED
        whole = client.post(f"{monolith.url}/v1/chat/completions", json=request).json()
    tokens = generated.json()["choices"][0]["token_ids"]
    # Stock vLLM loses max_tokens where it is 16, and nothing else here.
    return PASSED if tokens == whole["choices"][0]["token_ids"] else WRONG


def dies(server: Server) -> bool:
    """Whether the server, or the one behind it, ends now that it has failed a request."""
    deadline = time.monotonic() + _DEATH_SHOWS_WITHIN_S
    silent = 0
    while time.monotonic() < deadline:
        # On a busy machine one look may time out.
        silent = 0 if server.is_ready() else silent + 1
        if server.exit_code is not None or silent == 2:
            return True
        time.sleep(0.5)
    return False
