"""vLLM's own front end, complete, on an engine core that says what a test tells it to.

It is `vllm serve` without a model: vLLM's command line, its `AsyncLLM` and its application. Only
the client of the engine's process is replaced.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fastapi import FastAPI
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient

TASKS = ("generate",)


class ScriptedCore:
    """In place of the client of an engine core's process.

    Attributes:
        chunks: the token ids that each step adds, for every request from now on.
        finish_reason: of the last step.
        requests: those that came.
        processor: vLLM's output processor, which the steps go to.
    """

    def __init__(self) -> None:
        self.chunks: Sequence[Sequence[int]] = ()
        self.finish_reason = FinishReason.STOP
        self.requests: list[EngineCoreRequest] = []
        self.processor: Any = None
        self.resources = SimpleNamespace(engine_dead=False)
        self._steps: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.requests.append(request)
        for number, chunk in enumerate(self.chunks, 1):
            last = number == len(self.chunks)
            self._steps.put_nowait(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=list(chunk),
                    finish_reason=self.finish_reason if last else None,
                )
            )

    async def get_output_async(self) -> EngineCoreOutputs:
        step = await self._steps.get()
        # Outputs that nobody has taken yet would become one with the next.
        while self._untaken():
            await asyncio.sleep(0)
        return EngineCoreOutputs(outputs=[step])

    def _untaken(self) -> bool:
        states = self.processor.request_states.values()
        return any(state.queue.output is not None for state in states)

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return TASKS

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Steps of a request that nobody knows any more are ignored."""

    def shutdown(self, timeout: float | None = None) -> None:
        """No process was started."""


@asynccontextmanager
async def scripted_vllm(flags: Sequence[str]) -> AsyncIterator[tuple[FastAPI, ScriptedCore]]:
    """Build what ``vllm serve`` with `flags` would serve."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(list(flags))
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        UsageContext.OPENAI_API_SERVER
    )
    core: Any = ScriptedCore()
    with mock.patch.object(EngineCoreClient, "make_async_mp_client", return_value=core):
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    core.processor = llm.output_processor
    app = build_app(args, TASKS, config.model_config)
    await init_app_state(llm, app.state, args, TASKS)
    try:
        yield app, core
    finally:
        llm.shutdown()
