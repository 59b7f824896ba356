"""DeepSeek-OCR-2, as far as a front end needs it: configuration and tokenizer, no weights.

vLLM builds vision towers of hundreds of megabytes for it, whatever the configuration says.
"""

import json
from pathlib import Path
from typing import Any

from tests.checkpoints import tokenizer
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_HIDDEN = 64


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<bos>", "<image>"], named={**TURN_NAMES, "bos_token": "<bos>"}
    )
    language: dict[str, Any] = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
        "hidden_size": _HIDDEN,
        "intermediate_size": 128,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "first_k_dense_replace": 2,
        # Plain attention instead of DeepSeek's compressed one.
        "use_mla": False,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "kv_lora_rank": None,
        "q_lora_rank": None,
        "max_position_embeddings": 4096,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "pad_token_id": text.pad_token_id,
    }
    config = {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "language_config": language,
        "vision_config": {"image_size": 1024},
        "projector_config": {"input_dim": 896, "n_embed": _HIDDEN, "projector_type": "linear"},
        "tile_tag": "2D",
        "global_view_pos": "head",
        "dtype": "float32",
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    text.chat_template = chat_template(image="<image>")
    text.save_pretrained(path)
    return path
