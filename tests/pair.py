"""The two services as real processes."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

from shared_protocol.serving_info import INFO_PATH
from tests.engine_settings import ENGINE_ENVIRONMENT, ENGINE_FLAGS
from tests.processes import Server, free_port


class GenerateService(Server):
    def __init__(
        self,
        model: Path,
        *flags: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        module: str = "generate_service",
    ) -> None:
        port = free_port()
        super().__init__(
            command=[
                *(sys.executable, "-m", module, f"--model={model}"),
                *("--host=127.0.0.1", f"--port={port}"),
                *ENGINE_FLAGS,
                *flags,
            ],
            env=ENGINE_ENVIRONMENT | dict(env or {}),
            url=f"http://127.0.0.1:{port}",
            ready_path="/ready",
            log=log,
        )

    def hidden_size(self) -> int:
        """Of the embeddings that the served model takes; asks the running service."""
        answer = httpx.get(self.url + INFO_PATH, timeout=30.0, trust_env=False)
        size: int = answer.json()["hidden_size"]
        return size


class RenderService(Server):
    def __init__(
        self,
        model: Path,
        generate_urls: Sequence[str],
        *flags: str,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        super().__init__(
            command=[
                *(sys.executable, "-m", "render_service", f"--model={model}"),
                *(f"--generate-url={url}" for url in generate_urls),
                *("--host=127.0.0.1", f"--port={port}", "--dtype=float32"),
                *flags,
            ],
            env=ENGINE_ENVIRONMENT | dict(env or {}),
            url=f"http://127.0.0.1:{port}",
            ready_path="/ready",
            log=log,
        )


class Pair:
    """One render service on one or more generate services; ready inside the context.

    Attributes:
        url: of the render service.
    """

    def __init__(
        self,
        model: Path,
        *,
        logs: Path,
        replicas: int = 1,
        flags: Sequence[str] = (),
        generate_flags: Sequence[str] = (),
        render_flags: Sequence[str] = (),
        generate_env: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            flags: for both services; the others for one of them.
            env: of both services.
        """
        self.replicas = [
            GenerateService(
                model,
                *flags,
                *generate_flags,
                log=logs / f"generate-{index}.log",
                env=dict(env or {}) | dict(generate_env or {}),
            )
            for index in range(replicas)
        ]
        self.render = RenderService(
            model,
            [replica.url for replica in self.replicas],
            *flags,
            *render_flags,
            log=logs / "render.log",
            env=env,
        )
        self.url = self.render.url

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in (*self.replicas, self.render):
                stack.callback(server.stop)
                server.start()
            for server in (*self.replicas, self.render):
                server.wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
