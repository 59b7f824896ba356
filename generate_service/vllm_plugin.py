"""What every process of vLLM's engine does first when the generate service starts it."""

import os
from typing import Final

from generate_service import parent_watch

SERVED_VARIABLE: Final = "_TANDEM_GENERATE_ENGINE"
"""Set by the generate service: other programs on the host that use vLLM are left as they are.
Not with the prefix of settings, of which unknown ones are errors."""

_LLAVA_ONEVISION: Final = "generate_service.vllm_llava_onevision:LlavaOnevision"

_calls: list[int] = []


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once."""
    _calls.append(os.getpid())
    if SERVED_VARIABLE not in os.environ:
        return
    # Of what is not started as `vllm_processes` has it: other executors, engines of Ray's.
    parent_watch.start()
    from vllm.model_executor.models import ModelRegistry

    from generate_service import vllm_clean_blocks

    ModelRegistry.register_model("LlavaOnevisionForConditionalGeneration", _LLAVA_ONEVISION)
    if os.environ.get(vllm_clean_blocks.VARIABLE) == "on":
        vllm_clean_blocks.zero_new_blocks()


def registered() -> bool:
    """Whether vLLM has called the entry point: the variable `VLLM_PLUGINS` may leave it out."""
    return bool(_calls)
