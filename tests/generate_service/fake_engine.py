"""An engine for what happens around one: it yields what it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable

from generate_service.admission import ModelLimits
from generate_service.item_admission import ItemLimits, MediaLimits
from generate_service.vllm_request import EngineRequest
from shared_protocol.answer import TokenDelta
from shared_protocol.serving_info import ServingInfo

Script = Callable[[EngineRequest], AsyncIterator[list[TokenDelta]]]

INFO = ServingInfo(
    model="/models/tiny",
    served_model_names=["tiny"],
    architecture="TinyForCausalLM",
    vocab_size=100,
    hidden_size=4,
    max_model_len=32,
    dtype="float32",
    enable_prompt_embeds=True,
    max_logprobs=20,
    max_num_seqs=8,
    runner_type="generate",
    supported_tasks=["generate"],
    generation_config="auto",
    structured_outputs_backend="auto",
    reasoning_parser="",
    vllm_version="0.32.0",
)

LIMITS = ModelLimits(
    served_names=INFO.served_model_names,
    vocab_size=INFO.vocab_size,
    hidden_size=INFO.hidden_size,
    max_model_len=INFO.max_model_len,
    dtype=INFO.dtype,
    enable_prompt_embeds=True,
    media=MediaLimits({"image": ItemLimits(most=None, sample=None, rule=None)}, takes_embeds=True),
    generates=True,
    encoder_decoder=False,
    adapters=(),
)


class FakeEngine:
    """
    Attributes:
        requests: those that reached it.
        aborted: how many were closed before their last delta.
        steps: how many were taken from it.
        most_at_once: how many requests it has had at once.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[EngineRequest] = []
        self.aborted = 0
        self.steps = 0
        self.most_at_once = 0
        self._running = 0
        self.dead = False
        self.shut_down = False

    def info(self) -> ServingInfo:
        return INFO

    def limits(self) -> ModelLimits:
        return LIMITS

    def default_max_tokens(self, prompt_length: int) -> int:
        return INFO.max_model_len - prompt_length

    def check_positions(self, request: EngineRequest) -> None:
        """It has none."""

    async def generate(self, request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
        self.requests.append(request)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            async for step in self._script(request):
                self.steps += 1
                yield step
        except BaseException:
            self.aborted += 1
            raise
        finally:
            self._running -= 1

    def shutdown(self) -> None:
        self.shut_down = True


async def three_tokens(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    yield [TokenDelta(token_ids=[7])]
    yield [TokenDelta(token_ids=[8]), TokenDelta(token_ids=[9], finish_reason="length")]


async def forever(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    while True:
        yield [TokenDelta(token_ids=[7])]
        await asyncio.sleep(0.01)


async def silent(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    await asyncio.sleep(3600)
    yield []


async def two_seconds(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    for _ in range(20):
        yield [TokenDelta(token_ids=[7])]
        await asyncio.sleep(0.1)
    yield [TokenDelta(token_ids=[8], finish_reason="length")]


async def flood(request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
    """More than the buffers of a connection hold."""
    while True:
        yield [TokenDelta(token_ids=[7] * 10_000)]
        await asyncio.sleep(0)
