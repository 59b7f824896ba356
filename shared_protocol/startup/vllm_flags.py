"""Every flag of vLLM's server, and which of the two services takes it.

The table is closed, and a test compares it with vLLM's parser: a flag that a new vLLM brings has
to be placed here before anybody can set it. It names flags only, so that a wrong flag is reported
before vLLM, which takes seconds to import, is.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Service(StrEnum):
    RENDER = "render"
    GENERATE = "generate"

    @property
    def other(self) -> "Service":
        return Service.GENERATE if self is Service.RENDER else Service.RENDER


# Which model it is, what may be asked of it, how to listen and to log. Where these flags describe
# the model, both services need the same values, or a request would not mean the same on both.
_BOTH: Final[Mapping[str, str]] = {
    "options": "enable-log-requests",
    "Frontend": "host port uvicorn-log-level",
    "ModelConfig": """
        code-revision config-format convert dtype enable-prompt-embeds generation-config
        hf-config-path hf-overrides hf-token logits-processors logprobs-mode max-logprobs
        max-model-len model
        model-class-overrides model-impl override-generation-config pooler-config revision runner
        served-model-name tokenizer tokenizer-mode tokenizer-revision trust-remote-code
    """,
    "StructuredOutputsConfig": "reasoning-parser reasoning-parser-plugin",
    "MultiModalConfig": """
        enable-mm-embeds language-model-only limit-mm-per-prompt mm-device-do-normalize
        mm-processor-cache-gb mm-processor-kwargs video-pruning-method video-pruning-rate
    """,
    "LoggingConfig": "log-config-file log-level logging-config",
    "VllmConfig": "reasoning-config structured-outputs-config",
}

# The HTTP API, chat templates, parsers, and media on their way to the processor.
_RENDER: Final[Mapping[str, str]] = {
    "Frontend": """
        allow-credentials allowed-headers allowed-methods allowed-origins
        anthropic-disabled-thinking-effort api-key chat-template chat-template-content-format
        cohere-format cohere-is-reasoning-model default-chat-template-kwargs disable-fastapi-docs
        disable-access-log-for-endpoints disable-uvicorn-access-log enable-auto-tool-choice
        enable-force-include-usage enable-log-deltas enable-log-outputs enable-offline-docs
        enable-per-request-metrics enable-prompt-tokens-details enable-request-id-headers
        enable-scale-out enable-server-load-tracking enable-ssl-refresh
        enable-tokenizer-info-endpoint exclude-tools-when-tool-choice-none fingerprint-mode
        fingerprint-value h11-max-incomplete-event-size log-error-stack max-log-len middleware
        response-role return-tokens-as-token-ids root-path sse-keep-alive-interval ssl-ca-certs
        ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile
        tool-call-parser tool-parser-plugin tool-server tool-strict-level
        trust-request-chat-template trust-request-mm-kwargs
    """,
    "SchedulerConfig": "stream-interval",
    "ModelConfig": "allowed-local-media-path allowed-media-domains renderer-num-workers",
    "MultiModalConfig": """
        interleave-mm-strings media-io-kwargs mm-hasher-algorithm mm-processor-device
    """,
}

# Weights, devices, memory, scheduling: what the engine does with a prompt.
_GENERATE: Final[Mapping[str, str]] = {
    "Frontend": "lora-modules",
    "options": """
        aggregate-engine-logging disable-log-stats fail-on-environ-validation gdn-prefill-backend
        kda-decode-backend kda-prefill-backend shutdown-timeout
    """,
    "ModelConfig": """
        allow-deprecated-quantization disable-cascade-attn disable-sliding-window
        enable-cumem-allocator enable-return-routed-experts enable-trace-replay enforce-eager
        quantization quantization-config return-sampling-mask seed skip-tokenizer-init
        use-fp64-gumbel
    """,
    "LoadConfig": """
        download-dir ignore-patterns load-format model-loader-extra-config pt-load-map-location
        safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
        use-tqdm-on-load
    """,
    "AttentionConfig": "attention-backend",
    "MambaConfig": """
        enable-mamba-cache-stochastic-rounding mamba-backend mamba-cache-philox-rounds
        mamba-ssu-algorithm
    """,
    "ParallelConfig": """
        all2all-backend cp-kv-cache-interleave-size cpu-distributed-timeout-seconds
        data-parallel-address data-parallel-backend data-parallel-external-lb
        data-parallel-hybrid-lb data-parallel-rank data-parallel-rpc-port data-parallel-size
        data-parallel-size-local data-parallel-start-rank dbo-decode-token-threshold
        dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate
        decode-context-parallel-size device-ids disable-custom-all-reduce
        disable-nccl-for-dp-synchronization distributed-executor-backend
        distributed-timeout-seconds dp-sync-interval enable-batch-sharded-sampling enable-dbo
        enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance
        enable-hc-sp enable-shm-tensor-arena eplb-config expert-placement-strategy
        fault-tolerance-config master-addr master-port max-parallel-loading-workers nnodes
        node-rank numa-bind numa-bind-cpus numa-bind-nodes pipeline-parallel-size
        prefill-context-parallel-size ray-workers-use-nsight tensor-parallel-size ubatch-size
        worker-cls worker-extension-cls
    """,
    "CacheConfig": """
        block-size enable-mamba-shared-prefix-checkpoint enable-prefix-caching
        gpu-memory-utilization kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes
        kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill mamba-block-size
        mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype num-gpu-blocks-override
        prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit
        replayssm-buffer-len swa-bounded-replay use-replayssm
    """,
    "OffloadConfig": """
        cpu-offload-gb cpu-offload-params offload-backend offload-group-size offload-num-in-group
        offload-params offload-prefetch-step
    """,
    "MultiModalConfig": """
        mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
        mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only
        mm-encoder-tp-mode mm-ipc-gpu-memory-gb mm-processor-cache-type
        mm-shm-cache-max-object-size-mb mm-tensor-ipc skip-mm-profiling
    """,
    "LoRAConfig": """
        enable-lora enable-mixed-moe-lora-format enable-moe-shared-loras
        enable-tower-connector-lora fully-sharded-loras lora-dtype lora-target-modules
        max-cpu-loras max-lora-cls-labels max-lora-rank max-loras specialize-active-lora
    """,
    "ObservabilityConfig": """
        collect-detailed-traces cudagraph-metrics custom-histogram-buckets
        enable-layerwise-nvtx-tracing enable-logging-iteration-details enable-mfu-metrics
        jit-monitor-mode jit-monitor-verbose kv-cache-metrics kv-cache-metrics-sample
        otlp-traces-endpoint per-request-spec-decode-metrics show-hidden-metrics-for-version
    """,
    "SchedulerConfig": """
        async-scheduling disable-chunked-mm-input disable-hybrid-kv-cache-manager
        enable-chunked-prefill long-prefill-token-threshold long-prefill-token-threshold-adaptive
        max-num-active-seqs max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens
        max-num-scheduled-tokens max-num-seqs prefill-schedule-interval scheduler-cls
        scheduler-reserve-full-isl scheduling-policy watermark
    """,
    "CompilationConfig": "cudagraph-capture-sizes max-cudagraph-capture-size",
    "KernelConfig": """
        enable-flashinfer-autotune ir-op-priority linear-backend moe-backend
        sparse-indexer-topk-backend
    """,
    "VllmConfig": """
        additional-config attention-config aux-output-config compilation-config diffusion-config
        ec-manager-config ec-transfer-config engram-config kernel-config kv-events-config
        kv-transfer-config optimization-level performance-mode spec-method
        spec-model spec-tokens speculative-config
    """,
}

_REFUSED: Final[Mapping[str, str]] = {
    "the service listens on --host and --port": "grpc grpc-port uds",
    "settings come from the command line and the environment": "config",
    "each replica is a service of its own, start more of them": """
        api-server-count data-parallel-multi-port-external-lb data-parallel-supervisor-port
        dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
        dp-supervisor-probe-timeout-s headless
    """,
    "the generate service is the endpoint for tokens": "tokens-only",
    "plug-ins that answer pooling requests run beside an engine": """
        enable-flash-late-interaction io-processor-plugin
    """,
    "an adapter is chosen by its name": "default-mm-loras",
    "the render service cannot tell yet which requests get a watermark": "watermark-config",
    "no route puts an engine to sleep": """
        enable-nccl-comm-suspend enable-sleep-mode sleep-mode-offload-cudagraph
        sleep-preserve-parameter-names
    """,
    "no route exchanges an engine's weights": "weight-transfer-config",
    "no route starts a profile": "profiler-config",
    "the HTTP server has no such limit, and vLLM sets one that nothing reads": (
        "h11-max-header-count"
    ),
    "no route changes the number of ranks": "elastic-ep-max-dp-size enable-elastic-ep",
}

ALIASES: Final[Mapping[str, str]] = {
    "--device-memory-utilization": "gpu-memory-utilization",
    "-ac": "attention-config",
    "-asc": "api-server-count",
    "-cc": "compilation-config",
    "-dc": "diffusion-config",
    "-dcp": "decode-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpb": "data-parallel-backend",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dpn": "data-parallel-rank",
    "-dpp": "data-parallel-rpc-port",
    "-dpr": "data-parallel-start-rank",
    "-ep": "enable-expert-parallel",
    "-n": "nnodes",
    "-pcp": "prefill-context-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-q": "quantization",
    "-r": "node-rank",
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
    "-O": "optimization-level",
}
"""Flags with a second name."""


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: label for label, names in table.items() for name in names.split()}


ACCEPTED: Final[Mapping[Service, Mapping[str, str]]] = {
    Service.RENDER: _by_name(_BOTH) | _by_name(_RENDER),
    Service.GENERATE: _by_name(_BOTH) | _by_name(_GENERATE),
}
"""For each service the flags that it takes, with the group that vLLM's help shows them in."""

REFUSED: Final[Mapping[str, str]] = _by_name(_REFUSED)
"""The flags that neither service takes, with the reason."""
