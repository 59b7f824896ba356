"""Random weights with which a tiny model still tells one input from another."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

# The usual scale. Larger embeddings would drown what the layers add, and a model with tied
# embeddings would then repeat its last token whatever else it was given.
_TOKEN_EMBEDDING_STD = 0.02
# Signals must grow a little from layer to layer, or all inputs look alike at the end.
_GAIN = 1.5
_VECTOR_STD = 0.1
# Such small embeddings make nearly equal logits: the last norm spreads them again.
_LAST_NORM_WEIGHT = 8.0


def randomize(model: PreTrainedModel, seed: int, *, last_norm: torch.Tensor | None = None) -> None:
    """Overwrite all parameters.

    The same seed gives the same weights, but for the rows that a larger vocabulary adds.

    Args:
        last_norm: the weight of the language model's, where that does not call it `norm`.
    """
    token_tables = {
        id(model.get_input_embeddings().weight),
        id(model.get_output_embeddings().weight),
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in token_tables:
                parameter.copy_(noise * _TOKEN_EMBEDDING_STD)
            elif name.endswith("bias"):
                parameter.copy_(noise * _VECTOR_STD)
            elif parameter.ndim == 1:  # a norm: around its neutral value, which varies by family
                parameter.add_(noise * _VECTOR_STD)
            else:
                inputs = parameter[0].numel()
                parameter.copy_(noise * (_GAIN / inputs**0.5))
        # Norms start at 1, or at 0 where the model adds the 1 itself.
        spread(model.get_decoder().norm.weight if last_norm is None else last_norm)


def rename_prefix(checkpoint: Path, old: str, new: str) -> None:
    """Rename the weights of a saved checkpoint whose names start with `old`."""
    path = checkpoint / "model.safetensors"
    renamed = {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in load_file(path).items()
    }
    save_file(renamed, path, metadata={"format": "pt"})


def random_tensors(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, torch.Tensor]:
    """Weights for a part that transformers has no class for, by the rules of `randomize`."""
    tensors = {}
    for name, shape in shapes.items():
        generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
        noise = torch.randn(*shape, generator=generator)
        if name.endswith("bias"):
            tensors[name] = noise * _VECTOR_STD
        elif len(shape) == 1:
            tensors[name] = 1 + noise * _VECTOR_STD
        else:
            tensors[name] = noise * (_GAIN / noise[0].numel() ** 0.5)
    return tensors


def token_tables(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, torch.Tensor]:
    """Embeddings and output rows; a longer table begins like a shorter one."""
    tensors = {}
    for name, shape in shapes.items():
        generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
        tensors[name] = torch.randn(*shape, generator=generator) * _TOKEN_EMBEDDING_STD
    return tensors


def spread(last_norm: torch.Tensor) -> None:
    """Let the last norm tell logits apart, as `randomize` does."""
    last_norm.add_(_LAST_NORM_WEIGHT - 1)


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> dict[str, list[int]]:
    """The shapes of a linear layer called `name`."""
    shapes = {f"{name}.weight": [outputs, inputs]}
    return shapes | {f"{name}.bias": [outputs]} if bias else shapes


def norm(name: str, width: int, *, bias: bool = True) -> dict[str, list[int]]:
    """The shapes of a normalization called `name`."""
    shapes = {f"{name}.weight": [width]}
    return shapes | {f"{name}.bias": [width]} if bias else shapes


def renamed(model: PreTrainedModel, prefixes: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The parameters of `model` by the names that vLLM's loader wants.

    Args:
        prefixes: beginnings of names, and what stands there instead; the first that fits counts.
    """
    tensors = {}
    for name, tensor in model.state_dict().items():
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        new = name if old is None else prefixes[old] + name.removeprefix(old)
        tensors[new] = tensor.contiguous()
    return tensors


def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
