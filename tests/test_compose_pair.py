"""The services as docker-compose.yml says, started without containers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.checkpoints import checkpoint
from tests.compose_processes import ContainerProcess, container_process
from tests.engine_settings import ENGINE_ENVIRONMENT
from tests.processes import Server, free_port

pytestmark = pytest.mark.engine


class ComposedServer(Server):
    """A container's process; ready when the container would be healthy."""

    def __init__(self, process: ContainerProcess, port: int, log: Path) -> None:
        self.healthcheck = here(process.healthcheck)
        super().__init__(
            command=here(process.command),
            env=ENGINE_ENVIRONMENT | process.environment | {"TANDEM_PORT": str(port)},
            url=f"http://127.0.0.1:{port}",
            ready_path="/ready",
            log=log,
        )

    def is_ready(self) -> bool:
        check = subprocess.run(self.healthcheck, env=self.env, stderr=subprocess.DEVNULL)
        return check.returncode == 0


def here(command: list[str]) -> list[str]:
    """The container's Python becomes this one."""
    program, *arguments = command
    assert program == "python3"
    return [sys.executable, *arguments]


@pytest.fixture
def render_url(tmp_path: Path) -> Iterator[str]:
    # What a container has and a process has not: the folder of the models, and host names.
    environ = {"TANDEM_MODEL": str(checkpoint("qwen2_vl")), "TANDEM_SERVED_MODEL_NAME": "tiny"}
    generate_port, render_port = free_port(), free_port()
    generate = container_process("generate", environ)
    render = container_process("render", environ)
    render.environment["TANDEM_GENERATE_URL"] = f"http://127.0.0.1:{generate_port}"
    with (
        ComposedServer(generate, generate_port, tmp_path / "generate.log"),
        ComposedServer(render, render_port, tmp_path / "render.log") as server,
    ):
        yield server.url


def test_a_chat_through_both(render_url: str) -> None:
    answer = httpx.post(
        f"{render_url}/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
            "ignore_eos": True,
        },
        timeout=120.0,
        trust_env=False,
    )
    assert answer.status_code == httpx.codes.OK, answer.text
    body = answer.json()
    assert body["model"] == "tiny"
    assert body["usage"]["completion_tokens"] == 4
