"""What a generate replica says of itself, and what the render tier compares."""

from typing import Final

import msgspec

from shared_protocol.request import PROTOCOL_VERSION, Adapter

INFO_PATH: Final = "/inference/v1/info"


class ServingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts on which both tiers must agree for a request to mean the same on both.

    Attributes:
        architecture: the first of the checkpoint's architectures.
        dtype: the model's dtype, by torch's name.
        adapters: the LoRA adapters that are loaded; the render tier offers them as models.
        structured_outputs_backend: as configured, before "auto" is resolved.
        data_parallel_ranks: how many there are for a request to choose from.
        kv_connector: whether the engine has one, which is told of requests that render refuses.
        missing_mm_embeddings: whether embeddings of media may come through an EC or KV connector,
            so that a request names their shape alone.
        fingerprints: what vLLM would answer as `system_fingerprint`, by ``--fingerprint-mode``.
        structured_outputs_options: the switches of vLLM's configuration that are on, by name.
        reasoning_token_ids: what begins the thinking, what ends it when its budget is spent, and
            what ends it otherwise; empty where a request cannot have a budget.
    """

    model: str
    served_model_names: list[str]
    architecture: str
    vocab_size: int
    hidden_size: int
    max_model_len: int
    dtype: str
    enable_prompt_embeds: bool
    max_logprobs: int
    max_num_seqs: int
    runner_type: str
    supported_tasks: list[str]
    generation_config: str
    structured_outputs_backend: str
    reasoning_parser: str
    vllm_version: str
    structured_outputs_options: list[str] = []
    reasoning_token_ids: list[list[int]] = []
    adapters: list[Adapter] = []
    data_parallel_ranks: int = 1
    kv_connector: bool = False
    missing_mm_embeddings: bool = False
    fingerprints: dict[str, str] = {}
    protocol_version: str = PROTOCOL_VERSION
