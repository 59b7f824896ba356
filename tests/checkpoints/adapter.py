"""A LoRA adapter for a tiny checkpoint, strong enough to change what it answers."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

_RANK = 4
_TARGET = "self_attn.q_proj"


def build(checkpoint: Path, path: Path, *, seed: int) -> Path:
    """Write an adapter of rank 4 on the query projections of the language model's layers."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for number, (name, shape) in enumerate(sorted(_projections(checkpoint).items())):
        generator = torch.Generator().manual_seed(seed + number)
        outputs, inputs = shape
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(_RANK, inputs, generator=generator)
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, _RANK, generator=generator)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": _RANK,
        "lora_alpha": _RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def _projections(checkpoint: Path) -> dict[str, list[int]]:
    with safe_open(checkpoint / "model.safetensors", framework="pt") as tensors:
        return {
            name: tensors.get_slice(name).get_shape()
            for name in tensors.keys()  # noqa: SIM118 - not a mapping
            if f"{_TARGET}.weight" in name and "vision" not in name
        }
