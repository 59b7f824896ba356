"""Random weights with which a tiny model still tells one input from another."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

# Larger embeddings would drown what the layers add, and a model with tied embeddings would then
# repeat its last token whatever else it was given. Smaller ones flatten the logits.
_EMBEDDING_STD = 0.25
# Signals must grow a little from layer to layer, or all inputs look alike at the end.
_GAIN = 1.5
_VECTOR_STD = 0.1


def randomize(model: nn.Module, seed: int) -> None:
    """Overwrite all parameters; the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in embeddings:
                parameter.copy_(noise * _EMBEDDING_STD)
            elif parameter.ndim == 1:
                parameter.add_(noise * _VECTOR_STD)
            else:
                inputs = parameter[0].numel()
                parameter.copy_(noise * (_GAIN / inputs**0.5))


def rename_prefix(checkpoint: Path, old: str, new: str) -> None:
    """Rename the weights of a saved checkpoint whose names start with `old`."""
    path = checkpoint / "model.safetensors"
    renamed = {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in load_file(path).items()
    }
    save_file(renamed, path, metadata={"format": "pt"})
