"""Qwen3.5: Qwen3-VL's media in front of a language model with gated delta-net layers."""

from pathlib import Path

import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from tests.checkpoints import qwen3_vl, tokenizer, weights

# The only width that vLLM's CPU kernel for these layers was found to take.
_DELTA_NET_HEAD = 128


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(qwen3_vl.SPECIAL, named=qwen3_vl.NAMED)
    config = Qwen3_5Config(
        text_config={
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": _DELTA_NET_HEAD,
            "linear_value_head_dim": _DELTA_NET_HEAD,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 6, 6],
                "partial_rotary_factor": 1.0,
                "mrope_interleaved": True,
            },
            "eos_token_id": text.eos_token_id,
        },
        vision_config={**qwen3_vl.VISION, "out_hidden_size": 64},
        **qwen3_vl.media_token_ids(text),
        dtype="float32",
    )
    # The decay of a delta-net layer starts at random, and randomize() only adds to vectors.
    torch.manual_seed(6)
    model = Qwen3_5ForConditionalGeneration(config)
    weights.randomize(model, seed=6)
    model.save_pretrained(path)
    qwen3_vl.save_processor(path, text)
    return path
