"""A request gets its blocks of the KV cache zeroed, whatever was in them.

Attention weighs what lies behind the end of a sequence in its last block with zero, and zero times
NaN is NaN: one request whose keys became NaN would spoil the answers of those that get its blocks
later. vLLM zeroes new blocks for models with Mamba layers and for caches of mixed precision; here
it does for all.
"""

import os
from typing import Any, Final

VARIABLE: Final = "TANDEM_ZERO_KV_BLOCKS"
"""`on` in the environment of engines that do so; the service's own setting of this name."""


def zero_new_blocks() -> None:
    """Have vLLM zero new blocks in this process, the engine's core or a worker."""
    from vllm.platforms import current_platform
    from vllm.v1.kv_cache_interface import KVCacheConfig

    KVCacheConfig.needs_kv_cache_zeroing = property(_needed)
    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        CPUModelRunner._zero_block_ids = _zero_blocks


def check_connector(config: Any) -> None:
    """Raise RuntimeError for a connector that reads into blocks while they are being zeroed.

    MoRIIO keeps its destinations from being zeroed for models with Mamba layers only.
    """
    transfer = config.kv_transfer_config
    zeroing = os.environ.get(VARIABLE) == "on"
    if zeroing and transfer is not None and transfer.kv_connector == "MoRIIOConnector":
        raise RuntimeError("With MoRIIOConnector, start with --zero-kv-blocks=off")


def _needed(_: Any) -> bool:
    return True


def _zero_blocks(runner: Any, block_ids: list[int]) -> None:
    """In place of the CPU runner's own, which looks at layers of full attention only."""
    import torch

    blocks = torch.tensor(block_ids)
    contexts = runner.compilation_config.static_forward_context
    seen = set()
    for group in runner.kv_cache_config.kv_cache_groups:
        for layer in group.layer_names:
            cache = contexts[layer].kv_cache if layer in contexts else None
            if isinstance(cache, torch.Tensor) and cache.data_ptr() not in seen:
                seen.add(cache.data_ptr())
                shape = (runner.kv_cache_config.num_blocks, -1, *cache.shape[1:])
                cache.view(shape).index_fill_(0, blocks, 0)
