"""Reading the tensors of ``prompt_embeds``: vLLM's reader, and what it lets through."""

import torch
from vllm.config import ModelConfig
from vllm.exceptions import VLLMValidationError
from vllm.renderers import base, chat_utils
from vllm.renderers.embed_utils import safe_load_prompt_embeds
from vllm.utils.async_utils import make_async

_FIELD = "prompt_embeds"


def load_prompt_embeds(model_config: ModelConfig, data: bytes) -> torch.Tensor:
    """Read base64 of a tensor file into ``(length, hidden_size)`` of the model's dtype.

    Raises:
        VLLMValidationError: for anything else, and for values that are not finite: in the
            engine's cache they would spoil the answers of others.
    """
    try:
        tensor = safe_load_prompt_embeds(model_config, data)
    except ValueError as error:
        raise VLLMValidationError(f"`{_FIELD}` is not base64: {error}", parameter=_FIELD) from error
    # A parameter of somebody's training, or a view of a complex tensor, is but its values here.
    values: torch.Tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not torch.isfinite(values).all():
        raise VLLMValidationError(
            f"`{_FIELD}` holds NaN or infinite values in the model's dtype, {values.dtype}",
            parameter=_FIELD,
        )
    return values


def install() -> None:
    """Have vLLM's renderers, made after this call, read with `load_prompt_embeds`."""
    chat_utils.safe_load_prompt_embeds = load_prompt_embeds
    chat_utils.safe_load_prompt_embeds_async = make_async(load_prompt_embeds)
    base.safe_load_prompt_embeds = load_prompt_embeds
