"""vLLM's own front end, put together on a remote engine."""

import logging
from argparse import Namespace

from fastapi import FastAPI
from starlette.datastructures import State
from vllm import envs
from vllm import version as vllm_version
from vllm.config import LoRAConfig, ParallelConfig, ReasoningConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.lora.request import LoRARequest

from render_service import vllm_processors, vllm_prompt_embeds
from render_service.remote_engine import RemoteEngine
from render_service.replicas import ReplicaPool
from render_service.vllm_middleware import stack_left_unbuilt
from shared_protocol.request import Adapter
from shared_protocol.serving_info import ServingInfo
from shared_protocol.startup.vllm_facts import reasoning_token_ids, structured_outputs_options


def build_config(args: Namespace, replica: ServingInfo) -> VllmConfig:
    """Build vLLM's configuration for a process without device and weights.

    Args:
        replica: what a generate replica says; the engine may have lowered `max_model_len`.
    """
    vllm_prompt_embeds.install()
    vllm_processors.install()
    engine_args = AsyncEngineArgs.from_cli_args(args)
    engine_args.max_model_len = replica.max_model_len
    model_config = engine_args.create_model_config()
    # As `vllm launch render` does: no kernels are chosen here, and no KV cache is sized.
    model_config.quantization = None
    envs.VLLM_CPU_KVCACHE_SPACE = 0
    config = VllmConfig(
        model_config=model_config,
        # More than one API process selects the cache that keeps whole processed items; the
        # default one would hand out None for a repeated image.
        parallel_config=ParallelConfig(_api_process_count=2),
        logging_config=engine_args.create_logging_config(),
        structured_outputs_config=engine_args.create_structured_outputs_config(),
        reasoning_config=_reasoning_config(engine_args),
        # Which adapters there are, and how they are held, is the engine's affair.
        lora_config=LoRAConfig() if replica.adapters else None,
    )
    if replica.missing_mm_embeddings and model_config.multimodal_config is not None:
        # As vLLM derives it from connectors, of which this process has none.
        model_config.multimodal_config.allow_missing_mm_embeddings = True
        model_config.multimodal_config.enable_mm_embeds = True
    config.scheduler_config.max_num_seqs = replica.max_num_seqs
    config.scheduler_config.stream_interval = engine_args.stream_interval
    return config


def _reasoning_config(engine_args: AsyncEngineArgs) -> ReasoningConfig | None:
    """As the engine's front end has it: a reasoning parser alone enables thinking budgets."""
    engine_args._set_default_reasoning_config_args()
    return engine_args.reasoning_config


def own_info(args: Namespace, config: VllmConfig, replica: ServingInfo) -> ServingInfo:
    """What this tier would say of itself; what it cannot know is taken from the replica."""
    model = config.model_config
    return ServingInfo(
        model=args.model,
        served_model_names=args.served_model_name or [args.model],
        architecture=model.architectures[0],
        vocab_size=model.get_vocab_size(),
        hidden_size=model.get_hidden_size(),
        # "auto" is -1: the replica's.
        max_model_len=args.max_model_len
        if (args.max_model_len or 0) > 0
        else replica.max_model_len,
        dtype=str(model.dtype).removeprefix("torch."),
        enable_prompt_embeds=model.enable_prompt_embeds,
        max_logprobs=model.max_logprobs,
        max_num_seqs=replica.max_num_seqs,
        runner_type=model.runner_type,
        supported_tasks=replica.supported_tasks,
        generation_config=model.generation_config,
        structured_outputs_backend=config.structured_outputs_config.backend,
        structured_outputs_options=structured_outputs_options(config),
        reasoning_parser=config.structured_outputs_config.reasoning_parser,
        reasoning_token_ids=reasoning_token_ids(config),
        vllm_version=vllm_version.__version__,
        adapters=replica.adapters,
        data_parallel_ranks=replica.data_parallel_ranks,
        missing_mm_embeddings=replica.missing_mm_embeddings,
        kv_connector=replica.kv_connector,
        fingerprints=replica.fingerprints,
    )


async def build_frontend(
    args: Namespace, config: VllmConfig, pool: ReplicaPool, replica: ServingInfo, wire: str
) -> tuple[FastAPI, RemoteEngine]:
    """Build vLLM's application and its state on a `RemoteEngine`.

    Args:
        wire: "binary" or "json".
    """
    # There is no engine here whose statistics could be polled.
    args.disable_log_stats = True
    # Scores of late interaction would be computed by the engine that keeps the query; the
    # documents may go to other replicas.
    args.enable_flash_late_interaction = False
    tasks = tuple(replica.supported_tasks)
    engine = RemoteEngine(
        config, pool, tasks, data_parallel_ranks=replica.data_parallel_ranks, wire=wire
    )
    # vLLM advises to restart it with a flag that changes nothing here.
    logging.getLogger("vllm.entrypoints.scale_out.factories").addFilter(_is_no_advice)
    with stack_left_unbuilt():
        app = build_app(args, tasks, config.model_config)
    await init_app_state(engine, app.state, args, tasks)
    _offer_adapters(app.state.openai_serving_models, replica.adapters)
    _describe_engine(app.state, replica, args.fingerprint_mode)
    return app, engine


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "--enable-scale-out" not in record.getMessage()


def _offer_adapters(models: OpenAIServingModels, adapters: list[Adapter]) -> None:
    """List the replicas' adapters as models; they are loaded there already."""
    for adapter in adapters:
        models.lora_requests[adapter.name] = LoRARequest(
            adapter.name, adapter.int_id, adapter.path, base_model_name=adapter.base_model_name
        )


def _describe_engine(state: State, replica: ServingInfo, fingerprint_mode: str) -> None:
    """Tell vLLM's serving what it has taken from the configuration, which here is not an engine's.

    A mode that the replica has no fingerprint for does not depend on the engine.
    """
    for serving in state._state.values():
        if hasattr(serving, "system_fingerprint"):
            serving.has_kv_connector = replica.kv_connector
            serving.system_fingerprint = replica.fingerprints.get(
                fingerprint_mode, serving.system_fingerprint
            )
