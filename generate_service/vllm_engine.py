"""vLLM's AsyncLLM, driven without making text: engine steps come out as the wire's deltas."""

import asyncio
import contextlib
import copy
import logging
from argparse import Namespace
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

from vllm import version as vllm_version
from vllm.config import ParallelConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.entrypoints.serve.utils.fingerprint import build_system_fingerprint
from vllm.envs import disable_envs_cache, enable_envs_cache
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.tracing import log_tracing_disabled_warning
from vllm.usage.usage_lib import UsageContext
from vllm.utils.async_utils import cancel_task_threadsafe
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

from generate_service import (
    vllm_clean_blocks,
    vllm_output_socket,
    vllm_plugin,
    vllm_processes,
)
from generate_service.admission import ModelLimits
from generate_service.item_admission import MediaLimits
from generate_service.vllm_delta import encode_delta
from generate_service.vllm_media_limits import media_limits
from generate_service.vllm_positions import ModelPositions, check_positions, find_positions
from generate_service.vllm_request import EngineRequest, decode_adapter
from shared_protocol.answer import TokenDelta
from shared_protocol.errors import InternalError, InvalidRequest, Unavailable
from shared_protocol.request import Adapter
from shared_protocol.serving_info import ServingInfo
from shared_protocol.startup.vllm_facts import reasoning_token_ids, structured_outputs_options

logger = logging.getLogger(__name__)


class DeltaQueue:
    """Deltas of one request on their way from the engine's output loop to its HTTP stream."""

    def __init__(self, choices: int) -> None:
        self._deltas: deque[TokenDelta] = deque()
        self._ready = asyncio.Event()
        self._error: Exception | None = None
        self._unfinished = choices

    @property
    def finished(self) -> bool:
        return not self._unfinished and not self._deltas

    def put(self, event: object) -> None:
        """Take a delta, or why the engine died.

        vLLM also puts its own output of an abort here, which nobody reads any more.
        """
        if isinstance(event, Exception):
            self._error = event
        elif isinstance(event, TokenDelta):
            self._deltas.append(event)
            self._unfinished -= event.finished
        self._ready.set()

    async def take(self) -> list[TokenDelta]:
        """Wait for at least one delta and return all that are there."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            self._ready.clear()
            await self._ready.wait()
        deltas = list(self._deltas)
        self._deltas.clear()
        return deltas


class DeltaProcessor(OutputProcessor):
    """vLLM's output processor without its text: hands each engine step on as a delta.

    Requests of `AsyncLLM.generate` and `AsyncLLM.encode`, which bring a collector of vLLM's, are
    left to vLLM.
    """

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        others = []
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if not isinstance(state.queue, DeltaQueue):
                others.append(output)
                continue
            self._update_stats_from_output(state, output, engine_core_timestamp, iteration_stats)
            if state.is_prefilling:
                if output.prefill_stats is not None:
                    state.num_cached_tokens = output.prefill_stats.num_cached_tokens
                state.is_prefilling = False
            state.queue.put(
                encode_delta(
                    output,
                    index=state.request_index,
                    timestamp=engine_core_timestamp or 0.0,
                    weight_version=weight_version,
                )
            )
            if output.finish_reason is not None:
                self._finish_request(state)
                self._update_stats_from_finished(state, output.finish_reason, iteration_stats)
                if self.tracing_enabled:
                    self.do_tracing(output, state, iteration_stats)
        return super().process_outputs(
            others, engine_core_timestamp, iteration_stats, weight_version
        )


class DeltaLLM(AsyncLLM):
    """AsyncLLM with a `DeltaProcessor` in place of the processor that makes text."""

    output_processor: OutputProcessor

    def _run_output_handler(self) -> None:
        if not isinstance(self.output_processor, DeltaProcessor):
            made = self.output_processor
            self.output_processor = DeltaProcessor(
                made.tokenizer,
                log_stats=made.log_stats,
                stream_interval=made.stream_interval,
                tracing_enabled=made.tracing_enabled,
                admission_stats=made.admission_stats,
            )
        super()._run_output_handler()


class Engine:
    """One running engine and what requests need to know of it."""

    def __init__(
        self,
        llm: DeltaLLM,
        args: Namespace,
        supported_tasks: Iterable[str],
        adapters: list[Adapter],
        media: MediaLimits,
        positions: ModelPositions | None,
    ) -> None:
        self._llm = llm
        self._args = args
        self._adapters = adapters
        # The event loop holds tasks by weak references only.
        self._aborting: set[asyncio.Task[None]] = set()
        self.supported_tasks = tuple(supported_tasks)
        self._default_sampling_params = llm.model_config.get_diff_sampling_param()
        self._info = self._gather_info()
        self._limits = self._gather_limits(media)
        self._positions = positions

    @classmethod
    async def start(cls, args: Namespace, *, compare_items: bool) -> "Engine":
        """Load the model and start vLLM's engine processes; the event loop stays free meanwhile.

        Args:
            compare_items: whether items have to be such as the model's processor makes them.

        Raises:
            RuntimeError: if vLLM has not called `vllm_plugin`, or its KV connector cannot do with
                zeroed blocks.
        """
        disable_envs_cache()
        engine_args = AsyncEngineArgs.from_cli_args(args)
        if not vllm_plugin.registered():
            raise RuntimeError("vLLM has not loaded the plug-in tandem_engine: see VLLM_PLUGINS")
        config = await asyncio.to_thread(
            engine_args.create_engine_config, UsageContext.OPENAI_API_SERVER
        )
        vllm_clean_blocks.check_connector(config)
        vllm_processes.watch()
        llm = await asyncio.to_thread(
            DeltaLLM.from_vllm_config,
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=engine_args.enable_log_requests,
            disable_log_stats=engine_args.disable_log_stats,
            aggregate_engine_logging=engine_args.aggregate_engine_logging,
        )
        try:
            return await cls._complete(llm, args, compare_items)
        except Exception:
            # Its processes hold the memory that the next one needs.
            await asyncio.to_thread(llm.shutdown)
            raise

    @classmethod
    async def _complete(cls, llm: DeltaLLM, args: Namespace, compare_items: bool) -> "Engine":
        vllm_output_socket.start_reading(llm.engine_core)
        llm._run_output_handler()
        # Some are read for each token.
        enable_envs_cache()
        await llm.reset_mm_cache()
        adapters = [
            Adapter(module.name, number, module.path, module.base_model_name)
            for number, module in enumerate(args.lora_modules or (), 1)
        ]
        for adapter in adapters:
            await llm.add_lora(decode_adapter(adapter))
        media = await asyncio.to_thread(
            media_limits, llm.model_config, llm.renderer.mm_processor, compare_items=compare_items
        )
        positions = find_positions(llm.vllm_config) if compare_items else None
        return cls(llm, args, await llm.get_supported_tasks(), adapters, media, positions)

    @property
    def dead(self) -> bool:
        return self._llm.errored

    def shutdown(self) -> None:
        """End the engine and its processes; not to be called in the event loop's thread."""
        # First: vLLM would log the end of its engine as an error.
        cancel_task_threadsafe(self._llm.output_handler)
        self._llm.shutdown(timeout=self._llm.vllm_config.shutdown_timeout)

    def served_model_names(self) -> list[str]:
        return self._args.served_model_name or [self._args.model]

    def info(self) -> ServingInfo:
        return self._info

    def limits(self) -> ModelLimits:
        return self._limits

    def check_positions(self, request: EngineRequest) -> None:
        """Raise `InvalidRequest` if the model cannot place the media of `request`."""
        if self._positions is not None:
            check_positions(request, self._positions)

    def _gather_info(self) -> ServingInfo:
        config, model = self._llm.vllm_config, self._llm.model_config
        return ServingInfo(
            model=self._args.model,
            served_model_names=self.served_model_names(),
            architecture=model.architectures[0],
            vocab_size=model.get_vocab_size(),
            hidden_size=model.get_hidden_size(),
            max_model_len=model.max_model_len,
            dtype=str(model.dtype).removeprefix("torch."),
            enable_prompt_embeds=model.enable_prompt_embeds,
            max_logprobs=model.max_logprobs,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            runner_type=model.runner_type,
            supported_tasks=list(self.supported_tasks),
            generation_config=model.generation_config,
            structured_outputs_backend=config.structured_outputs_config.backend,
            structured_outputs_options=structured_outputs_options(config),
            reasoning_parser=config.structured_outputs_config.reasoning_parser,
            reasoning_token_ids=reasoning_token_ids(config),
            vllm_version=vllm_version.__version__,
            adapters=self._adapters,
            data_parallel_ranks=_ranks(config.parallel_config),
            missing_mm_embeddings=model.multimodal_config is not None
            and model.multimodal_config.allow_missing_mm_embeddings,
            kv_connector=config.kv_transfer_config is not None,
            # The other modes say nothing of the engine.
            fingerprints={
                mode: build_system_fingerprint(config, mode) for mode in ("full", "hash")
            },
        )

    def _gather_limits(self, media: MediaLimits) -> ModelLimits:
        info = self._info
        return ModelLimits(
            served_names=info.served_model_names,
            vocab_size=info.vocab_size,
            hidden_size=info.hidden_size,
            max_model_len=info.max_model_len,
            dtype=info.dtype,
            enable_prompt_embeds=info.enable_prompt_embeds,
            generates=info.runner_type == "generate",
            encoder_decoder=self._llm.model_config.is_encoder_decoder,
            adapters=self._adapters,
            media=media,
        )

    def default_max_tokens(self, prompt_length: int) -> int:
        """Limit of a request that names none, as vLLM's own tokens endpoint has it."""
        model = self._llm.model_config
        override = (
            self._default_sampling_params.get("max_tokens")
            if model.generation_config not in ("auto", "vllm")
            else (model.override_generation_config or {}).get("max_new_tokens")
        )
        try:
            limit: int = get_max_tokens(
                model.max_model_len, None, prompt_length, self._default_sampling_params, override
            )
        except ValueError as error:
            raise InvalidRequest(str(error), param="token_ids") from error
        return limit

    async def generate(self, request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
        """Run `request`; yield deltas as steps end, until every choice has finished.

        Closing the generator, or cancelling it, aborts the request in the engine.

        Raises:
            InvalidRequest: if vLLM's input processor refuses the request.
            Unavailable: if the engine is dead, or its queue is full: it did not take the request.
            InternalError: if the engine fails or dies while it has the request.
        """
        if request.abort_immediately:
            yield [await self._reject(request)]
            return
        with _refusals():
            core_request = self._process(request)
            choices = list(_choices(core_request))
            self._llm.check_admission(len(choices), core_request.request_id)
        if self.dead:
            raise Unavailable("The engine of this replica has died")
        queue = DeltaQueue(len(choices))
        try:
            await self._add(choices, queue)
            while not queue.finished:
                yield await queue.take()
        except Exception as error:
            logger.exception("request %s failed in the engine", core_request.request_id)
            # Never a 503: the engine had the request, and may have died of it. Whoever sees this
            # must not send the same request to the next engine.
            raise InternalError("The engine failed while it worked on this request") from error
        finally:
            if not queue.finished and not self.dead:
                await self._abort(core_request.request_id)

    async def _reject(self, request: EngineRequest) -> TokenDelta:
        """Have the KV connector free what is held elsewhere for a request that render refused."""
        extra_args = request.params.extra_args if isinstance(request.params, SamplingParams) else {}
        await self._llm.notify_kv_transfer_request_rejected(
            request.request_id,
            (extra_args or {}).get("kv_transfer_params", {}),
            data_parallel_rank=request.data_parallel_rank,
        )
        return TokenDelta(finish_reason="abort")

    async def _abort(self, request_id: str) -> None:
        """Abort in the engine, although the task that calls this is being cancelled."""
        task = asyncio.create_task(self._llm.abort(request_id, internal=True))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)
        await asyncio.shield(task)

    def _process(self, request: EngineRequest) -> EngineCoreRequest:
        if (
            self._llm.vllm_config.cache_config.kv_sharing_fast_prefill
            and isinstance(request.params, SamplingParams)
            and request.params.prompt_logprobs
        ):
            raise InvalidRequest(
                "--kv-sharing-fast-prefill makes the logprobs of prompt tokens wrong",
                param="sampling_params.prompt_logprobs",
            )
        processor = self._llm.input_processor
        core_request = processor.process_inputs(
            request.request_id,
            request.prompt,
            request.params,
            supported_tasks=self.supported_tasks,
            lora_request=request.lora,
            trace_headers=self._traced(request.trace_headers),
            priority=request.priority,
            data_parallel_rank=request.data_parallel_rank,
            session_id=request.session_id,
        )
        core_request.reasoning_ended = request.reasoning_ended
        core_request.reasoning_parser_kwargs = request.reasoning_parser_kwargs
        processor.assign_request_id(core_request)
        return core_request

    def _traced(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        if headers and self._llm.observability_config.otlp_traces_endpoint is None:
            log_tracing_disabled_warning()
            return None
        return headers

    async def _add(
        self, choices: list[tuple[ParentRequest | None, EngineCoreRequest]], queue: DeltaQueue
    ) -> None:
        # All are registered before the first is sent: it could finish in between.
        for index, (parent, choice) in enumerate(choices):
            self._llm.output_processor.add_request(choice, None, parent, index, queue)
        for _, choice in choices:
            await self._llm.engine_core.add_request_async(choice)


def _ranks(parallel: ParallelConfig) -> int:
    """As vLLM's input processor counts them."""
    local = parallel.local_engines_only
    ranks: int = parallel.data_parallel_size_local if local else parallel.data_parallel_size
    return ranks


def _choices(
    request: EngineCoreRequest,
) -> Iterator[tuple[ParentRequest | None, EngineCoreRequest]]:
    """Split a request for n choices as AsyncLLM does: ids ``0_...``, seeds ``seed + index``."""
    params = request.sampling_params
    if params is None or params.n == 1:
        yield None, request
        return
    parent = ParentRequest(request)
    for index in range(params.n):
        child = copy.copy(request)
        child.request_id, child.sampling_params = parent.get_child_info(index)
        yield parent, child


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Translate what vLLM raises for a request that it does not take."""
    try:
        yield
    except VLLMValidationError as error:
        raise InvalidRequest(error.args[0], param=error.parameter) from error
    except (VLLMClientError, ValueError) as error:
        raise InvalidRequest(str(error)) from error
    except GracefulHTTPError as error:
        raise Unavailable(str(error)) from error
