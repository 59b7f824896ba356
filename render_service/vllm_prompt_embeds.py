"""Reading the tensors of ``prompt_embeds``, with vLLM's rules for them and its messages.

vLLM's own reader unpickles what a client has sent.
"""

from typing import Final

import pybase64
import torch
from vllm import envs
from vllm.config import ModelConfig
from vllm.exceptions import VLLMValidationError
from vllm.renderers import base, chat_utils
from vllm.utils.async_utils import make_async

from render_service.tensor_file import read_tensor
from shared_protocol.errors import InvalidRequest

_FIELD: Final = "prompt_embeds"


def load_prompt_embeds(model_config: ModelConfig, data: bytes) -> torch.Tensor:
    """Read base64 of a tensor file into ``(length, hidden_size)`` of the model's dtype.

    Raises:
        VLLMValidationError: for anything else, and for values that are not finite: in the
            engine's cache they would spoil the answers of others.
    """
    if not model_config.enable_prompt_embeds:
        raise _refusal("You must set `--enable-prompt-embeds` to input `prompt_embeds`.")
    values = _in_model_dtype(_rows(load_tensor(data, _FIELD), model_config), model_config)
    check_finite(values, _FIELD)
    return values


def load_tensor(data: bytes | str, field: str) -> torch.Tensor:
    """Read base64 of a tensor file that came in `field`.

    Raises:
        VLLMValidationError: if it is no such thing.
    """
    try:
        file = pybase64.b64decode(data, validate=True)
    except ValueError as error:
        raise _refusal(f"`{field}` is not base64: {error}", field) from error
    try:
        return read_tensor(file, max_bytes=envs.VLLM_MAX_EMBED_DECODE_BYTES)
    except InvalidRequest as error:
        raise _refusal(
            f"`{field}` could not be deserialized as a torch tensor: {error.message}.", field
        ) from error


def check_finite(values: torch.Tensor, field: str) -> None:
    """
    Raises:
        VLLMValidationError: if one of the values is NaN or infinite.
    """
    if not torch.isfinite(values).all():
        raise _refusal(
            f"`{field}` holds NaN or infinite values in the model's dtype, {values.dtype}"
            if field == _FIELD
            else f"`{field}` holds NaN or infinite values",
            field,
        )


def _rows(tensor: torch.Tensor, model_config: ModelConfig) -> torch.Tensor:
    if tensor.dim() > 2:
        tensor = tensor.squeeze(0)
    if tensor.dim() != 2:
        raise _refusal(
            "`prompt_embeds` must be a 2D tensor of shape (num_tokens, hidden_size); "
            f"got shape {tuple(tensor.shape)}."
        )
    if tensor.shape[1] != (expected := model_config.get_hidden_size()):
        raise _refusal(
            f"`prompt_embeds` hidden_size {tensor.shape[1]} does not match the model's "
            f"hidden_size {expected}."
        )
    return tensor


def _in_model_dtype(tensor: torch.Tensor, model_config: ModelConfig) -> torch.Tensor:
    if not tensor.is_floating_point():
        raise _refusal(
            f"`prompt_embeds` dtype {tensor.dtype} is not a floating-point type, cannot safely "
            f"cast to the model's dtype {model_config.dtype}."
        )
    return tensor.to(model_config.dtype)


def _refusal(message: str, field: str = _FIELD) -> VLLMValidationError:
    return VLLMValidationError(message, parameter=field)


def install() -> None:
    """Have vLLM's renderers, made after this call, read with `load_prompt_embeds`."""
    chat_utils.safe_load_prompt_embeds = load_prompt_embeds
    chat_utils.safe_load_prompt_embeds_async = make_async(load_prompt_embeds)
    base.safe_load_prompt_embeds = load_prompt_embeds
