"""Prompt embeddings as a client supplies them."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

EmbedsPart = dict[str, str]


def embeds_part(tensor: torch.Tensor) -> EmbedsPart:
    """The content part for a ``(length, hidden_size)`` tensor."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return {"type": "prompt_embeds", "data": base64.b64encode(file.getvalue()).decode()}


def token_embeddings(checkpoint: Path, token_ids: list[int]) -> torch.Tensor:
    """The rows that the model itself would use for `token_ids`, as float32."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    rows = _embedding_table(checkpoint)[token_ids].float()
    if config["model_type"].startswith("gemma3"):
        # Gemma scales its embeddings after the look-up; supplied ones skip that step.
        rows *= torch.tensor(config["text_config"]["hidden_size"] ** 0.5)
    return rows


def hidden_size(checkpoint: Path) -> int:
    return _embedding_table(checkpoint).shape[1]


def _embedding_table(checkpoint: Path) -> torch.Tensor:
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if name.endswith("embed_tokens.weight"):
                    table: torch.Tensor = tensors.get_tensor(name)
                    return table
    raise LookupError(f"no embedding table in {checkpoint}")
