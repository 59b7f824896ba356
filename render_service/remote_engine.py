"""`RemoteEngine`: vLLM's engine client, whose engine runs on the generate tier."""

import asyncio
import contextlib
import copy
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import msgspec
from vllm.config import VllmConfig
from vllm.exceptions import (
    GenerationError,
    GracefulHTTPError,
    VLLMError,
    VLLMNotFoundError,
    VLLMValidationError,
)
from vllm.inputs import EngineInput, PromptType, split_enc_dec_input
from vllm.lora.request import LoRARequest
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.pooling_params import PoolingParams
from vllm.renderers import renderer_from_config
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest

from render_service.derender import Derenderer
from render_service.generation_limit import begin_generations, check_generations
from render_service.held_status import note_begun, note_refusal
from render_service.item_names import ItemNames
from render_service.outgoing_request import OutgoingRequest
from render_service.replicas import ReplicaPool
from render_service.vllm_engine_side import EngineSideCalls
from render_service.vllm_prompt import PromptConsumer
from render_service.vllm_request import (
    encode_features,
    encode_params,
    encode_prompt_embeds,
)
from shared_protocol.answer import TokenDelta
from shared_protocol.binary_codec import BINARY_CONTENT_TYPE, encode_parts
from shared_protocol.errors import (
    InvalidRequest,
    PayloadTooLarge,
    TandemError,
    Unavailable,
    UnknownModel,
)
from shared_protocol.json_codec import JSON_CONTENT_TYPE, encode_json
from shared_protocol.request import (
    PROTOCOL_VERSION,
    Adapter,
    GenerateRequest,
    ReasoningParserKwargs,
)
from shared_protocol.tensors import Buffer

logger = logging.getLogger(__name__)

_ENCODINGS: Final[dict[str, tuple[Callable[[GenerateRequest], Sequence[Buffer]], str]]] = {
    "binary": (encode_parts, BINARY_CONTENT_TYPE),
    "json": (lambda request: [encode_json(request)], JSON_CONTENT_TYPE),
}


class ReplicasUnavailable(GracefulHTTPError):
    """No replica took the request; carries the seconds after which trying again makes sense."""

    def __init__(self, error: Unavailable) -> None:
        super().__init__(error.message, HTTPStatus.SERVICE_UNAVAILABLE)
        self.retry_after_s = error.retry_after_s


@dataclass(frozen=True)
class RemoteRequest:
    """One generation, ready to be sent.

    Attributes:
        core: what vLLM's output processor wants to know; its prompt ids are those that are echoed.
        wire: what the replica is sent.
        items: vLLM's own, that `wire` was made of.
    """

    core: EngineCoreRequest
    wire: GenerateRequest
    items: Mapping[str, Sequence[Any]]


class RemoteEngine(EngineSideCalls):
    """Encodes, sends, and makes text of what comes back; vLLM's serving classes sit on top."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        pool: ReplicaPool,
        supported_tasks: Iterable[str],
        *,
        data_parallel_ranks: int = 1,
        wire: str = "binary",
    ) -> None:
        """
        Args:
            data_parallel_ranks: how many a replica has for a request to choose from.
            wire: "binary" or "json".
        """
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer_from_config(vllm_config)
        self.input_processor = InputProcessor(vllm_config, self.renderer)
        self.derenderer = Derenderer(
            self.renderer.tokenizer,
            stream_interval=vllm_config.scheduler_config.stream_interval,
        )
        self._consumer = PromptConsumer(self.renderer)
        self._pool = pool
        self._item_names = ItemNames()
        self._supported_tasks = tuple(supported_tasks)
        self._data_parallel_ranks = data_parallel_ranks
        self._encode, self._content_type = _ENCODINGS[wire]

    async def generate(
        self,
        prompt: PromptType | EngineInput,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one request on a replica; see `prepare` for the options.

        Args:
            prompt: rendered, or as vLLM's own engine would still render it.

        Raises:
            VLLMValidationError: if this tier or the replica refuses the request.
            ReplicasUnavailable: if no replica took it.
            GenerationError: if a replica took it and failed.
        """
        with translated_errors():
            begin_generations(sampling_params.n)
            if not _is_rendered(prompt):
                prompt = await self.render(prompt, options.get("tokenization_kwargs"))
            request = self.prepare(prompt, sampling_params, request_id, **options)
            self.input_processor.assign_request_id(request.core)
            outputs = RequestOutputCollector(sampling_params.output_kind, request.core.request_id)
            text = prompt_text or split_enc_dec_input(prompt)[1].get("prompt")
            run = self._run_one if sampling_params.n == 1 else self._run_choices
            with _own_faults():
                async with contextlib.aclosing(run(request, text, outputs)) as results:
                    async for output in results:
                        yield output

    async def render(
        self, prompt: PromptType, tokenization_kwargs: dict[str, Any] | None = None
    ) -> EngineInput:
        """Render as the engine's input processor does; vLLM detects the language of a sound so."""
        parsed = parse_model_prompt(self.model_config, prompt)
        params = self.renderer.default_cmpl_tok_params.with_kwargs(**(tokenization_kwargs or {}))
        (rendered,) = await self.renderer.render_cmpl_async([parsed], params)
        return rendered

    def prepare(
        self,
        prompt: EngineInput,
        params: SamplingParams | PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: Any = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> RemoteRequest:
        """Consume sentinels, validate as the engine's front end would, and encode.

        Raises:
            InvalidRequest: if the prompt's text spells a reserved token.
            VLLMValidationError: if vLLM's input processor refuses the request.
        """
        if not _is_rendered(prompt):
            raise NotImplementedError("Only rendered prompts can be sent to a replica")
        if kv_hints is not None:
            raise NotImplementedError("KV hints do not cross to the generate service")
        consumed = self._consumer.consume(prompt)
        core = self.input_processor.process_inputs(
            request_id,
            consumed,
            params,
            supported_tasks=self._supported_tasks,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            session_id=session_id,
        )
        self._check_rank(data_parallel_rank)
        encoder, decoder = split_enc_dec_input(consumed)
        wire = GenerateRequest(
            request_id=request_id,
            token_ids=decoder.get("prompt_token_ids") or [0] * len(decoder["prompt_embeds"]),
            **encode_params(params),
            features=encode_features(decoder),
            prompt_embeds=encode_prompt_embeds(decoder),
            encoder_token_ids=None if encoder is None else encoder["prompt_token_ids"],
            cache_salt=decoder.get("cache_salt"),
            priority=priority,
            protocol_version=PROTOCOL_VERSION,
            lora=_encode_adapter(lora_request),
            data_parallel_rank=data_parallel_rank,
            session_id=session_id,
            trace_headers=dict(trace_headers) if trace_headers else None,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=None
            if reasoning_parser_kwargs is None
            else ReasoningParserKwargs(**reasoning_parser_kwargs),
        )
        # The client is echoed the ids that its prompt was rendered to, sentinels and all.
        core.prompt_token_ids = split_enc_dec_input(prompt)[1].get("prompt_token_ids")
        return RemoteRequest(core, wire, decoder.get("mm_kwargs", {}))

    def _check_rank(self, rank: int | None) -> None:
        """In place of vLLM's own check, which would go by this process's one rank."""
        ranks = self._data_parallel_ranks
        if rank is not None and not 0 <= rank < ranks:
            raise VLLMValidationError(f"data_parallel_rank {rank} is out of range [0, {ranks}).")

    async def _run_one(
        self, request: RemoteRequest, text: str | None, outputs: RequestOutputCollector
    ) -> AsyncGenerator[Any, None]:
        request_id = request.core.request_id
        self.derenderer.add(request.core, text, outputs)
        try:
            async with self._send(request) as deltas:
                note_begun()
                async for delta in deltas:
                    ended = self.derenderer.feed(request_id, delta)
                    if (output := outputs.get_nowait()) is not None:
                        yield output
                    if ended:
                        return
        finally:
            self.derenderer.drop(request_id)

    def _send(
        self, request: RemoteRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[TokenDelta]]:
        outgoing = OutgoingRequest(request.wire, request.items, self._item_names, self._encode)
        return self._pool.generate(outgoing, content_type=self._content_type)

    async def _run_choices(
        self, request: RemoteRequest, text: str | None, outputs: RequestOutputCollector
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run each choice as a stream of its own, so that a stop string ends just that one."""
        parent = ParentRequest(request.core)
        choices = [_choice(request, parent, index) for index in range(parent.n)]
        for index, choice in enumerate(choices):
            self.derenderer.add(choice.core, text, outputs, parent=parent, index=index)
        tasks = [asyncio.create_task(self._pump(choice, outputs)) for choice in choices]
        try:
            finished = False
            while not finished:
                output = await outputs.get()
                assert isinstance(output, RequestOutput)
                finished = output.finished
                yield output
        finally:
            for task in tasks:
                task.cancel()
            # Before anything is awaited: where a client has left, that is cancelled at once.
            self.derenderer.drop(request.core.request_id)
            # Not `gather`, which hands on each cancellation: anyio repeats them, and a second one
            # in the middle of closing a connection leaves it in the pool for ever.
            await asyncio.wait(tasks)

    async def _pump(self, choice: RemoteRequest, outputs: RequestOutputCollector) -> None:
        try:
            async with self._send(choice) as deltas:
                note_begun()
                async for delta in deltas:
                    if self.derenderer.feed(choice.core.request_id, delta):
                        return
                    # Deltas that came together are to be seen one by one, as from an engine.
                    await asyncio.sleep(0)
        except Exception as error:
            outputs.put(error)

    async def encode(
        self,
        prompt: EngineInput,
        pooling_params: PoolingParams,
        request_id: str,
        **options: Any,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Run one request of a pooling model on a replica; as `generate`."""
        with translated_errors():
            begin_generations(1)
            request = self.prepare(prompt, pooling_params, request_id, **options)
            self.input_processor.assign_request_id(request.core)
            outputs = RequestOutputCollector(pooling_params.output_kind, request.core.request_id)
            with _own_faults():
                async with contextlib.aclosing(self._run_one(request, None, outputs)) as results:
                    async for output in results:
                        yield output

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        *,
        data_parallel_rank: int | None = None,
    ) -> None:
        """Have a replica's KV connector free what is held elsewhere for a request refused here."""
        wire = GenerateRequest(
            request_id=request_id,
            token_ids=[0],
            sampling_params={"max_tokens": 1},
            kv_transfer_params=kv_transfer_params,
            protocol_version=PROTOCOL_VERSION,
            data_parallel_rank=data_parallel_rank,
            abort_immediately=True,
        )
        outgoing = OutgoingRequest(wire, {}, self._item_names, self._encode)
        async with self._pool.generate(outgoing, content_type=self._content_type) as deltas:
            async for _ in deltas:
                pass

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        with translated_errors():
            check_generations(n)
        if not self._pool.takes_requests():
            raise _unavailable(self._pool.unavailable())

    async def check_health(self) -> None:
        if not self._pool.has_ready_replica():
            raise EngineDeadError

    async def get_supported_tasks(self) -> tuple[Any, ...]:
        return self._supported_tasks

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Nothing to do: a request ends in the engine when its stream is closed."""

    @property
    def is_running(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def errored(self) -> bool:
        # vLLM's launcher ends the process when this is true; an outage of replicas passes.
        return False

    @property
    def dead_error(self) -> BaseException:
        return EngineDeadError()

    async def is_tracing_enabled(self) -> bool:
        return self.vllm_config.observability_config.otlp_traces_endpoint is not None

    async def do_log_stats(self) -> None:
        """Nothing to log: the engine's statistics are logged where the engine is."""

    def shutdown(self, timeout: float | None = None) -> None:
        self.renderer.shutdown()


def _is_rendered(prompt: PromptType | EngineInput) -> bool:
    return isinstance(prompt, dict) and "type" in prompt


def _choice(request: RemoteRequest, parent: ParentRequest, index: int) -> RemoteRequest:
    """One of n choices, numbered and seeded as vLLM's own fan-out does."""
    core = copy.copy(request.core)
    core.request_id, core.sampling_params = parent.get_child_info(index)
    fields = {**request.wire.sampling_params, "n": 1}
    if core.sampling_params.seed is not None:
        fields["seed"] = core.sampling_params.seed
    wire = msgspec.structs.replace(request.wire, sampling_params=fields)
    return replace(request, core=core, wire=wire)


def _encode_adapter(lora: LoRARequest | None) -> Adapter | None:
    if lora is None:
        return None
    return Adapter(lora.lora_name, lora.lora_int_id, lora.lora_path, lora.base_model_name)


def _unavailable(error: Unavailable) -> ReplicasUnavailable:
    note_refusal(error)
    return ReplicasUnavailable(error)


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the wire's errors into those that vLLM's serving classes and handlers know."""
    try:
        yield
    except InvalidRequest as error:
        raise VLLMValidationError(error.message, parameter=error.param) from error
    except UnknownModel as error:
        raise VLLMNotFoundError(error.message) from error
    except Unavailable as error:
        raise _unavailable(error) from error
    except PayloadTooLarge as error:
        raise GracefulHTTPError(error.message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from error
    except TandemError as error:
        raise GenerationError(error.message) from error


@contextlib.contextmanager
def _own_faults() -> Iterator[None]:
    """Keep errors of ours from being taken for the client's, as vLLM takes a ValueError to be."""
    try:
        yield
    except (TandemError, VLLMError, NotImplementedError):
        raise
    except Exception as error:
        logger.exception("a request failed on this tier")
        raise GenerationError from error
