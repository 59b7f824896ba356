"""MiMo omni: images are dense; a video has a time in front of each pair of frames.

Without its encoder of sounds, which vLLM's CPU build cannot run; the processor takes sounds.
"""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.checkpoints import remote_config, tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template
from tests.checkpoints.weights import linear, norm

_HIDDEN = 64
_INNER = 128
_HEADS = 2
_HEAD = 32
_LAYERS = 2
_WIDTH = 32
_PATCH_SIZE = 16  # pixels
_MERGED = 4
"""Patches that make one token."""


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [
            *(*TURN_TOKENS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
            *("<|video_pad|>", "<|mimo_video_start|>", "<|mimo_video_end|>"),
            *("<|audio_pad|>", "<|mimo_audio_start|>", "<|mimo_audio_end|>"),
        ],
        named=TURN_NAMES,
    )
    rows = len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0)
    remote_config.save(
        path,
        "MiMoV2OmniForCausalLM",
        {
            **_language(rows),
            "vision_config": _VISION,
            "processor_config": _processor(text),
            "eos_token_id": text.eos_token_id,
            "pad_token_id": text.pad_token_id,
        },
        model_type="mimo_v2_omni",
        parts={},
        text="",
    )
    shapes = _language_shapes() | _vision_shapes()
    tables = {"model.embed_tokens.weight": [rows, _HIDDEN], "lm_head.weight": [rows, _HIDDEN]}
    tensors = weights.random_tensors(shapes, seed=15) | weights.token_tables(tables, seed=15)
    weights.spread(tensors["model.norm.weight"])
    weights.save(path, tensors)
    text.chat_template = chat_template(
        image="<|vision_start|><|image_pad|><|vision_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
        audio="<|mimo_audio_start|><|audio_pad|><|mimo_audio_end|>",
    )
    text.save_pretrained(path)
    return path


_VISION = {
    "depth": 2,
    "hidden_size": _WIDTH,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_key_value_heads": 1,
    "patch_size": _PATCH_SIZE,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "tokens_per_second": 2,
    "out_hidden_size": _HIDDEN,
    "fullatt_block_indexes": [0, 1],
    "qk_channels": 16,
    "kv_channels": 16,
    "use_sink": False,
}


def _language(rows: int) -> dict[str, Any]:
    return {
        "vocab_size": rows,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "moe_intermediate_size": 64,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "v_head_dim": _HEAD,
        "swa_num_attention_heads": _HEADS,
        "swa_num_key_value_heads": 1,
        "swa_head_dim": _HEAD,
        "swa_v_head_dim": _HEAD,
        "sliding_window": 128,
        "sliding_window_size": 128,
        # 0 is full attention, and no layer is one of experts.
        "hybrid_layer_pattern": [0] * _LAYERS,
        "moe_layer_freq": [0] * _LAYERS,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "hidden_act": "silu",
        "layernorm_epsilon": 1e-6,
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def _processor(text: PreTrainedTokenizerFast) -> dict[str, Any]:
    unit = (2 * _PATCH_SIZE) ** 2
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "audio_token_id": "<|audio_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "audio_start_token_id": "<|mimo_audio_start|>",
        "audio_end_token_id": "<|mimo_audio_end|>",
        "video_start_token_id": "<|mimo_video_start|>",
        "video_end_token_id": "<|mimo_video_end|>",
    }
    return {
        **{name: text.convert_tokens_to_ids(token) for name, token in names.items()},
        "image_min_pixels": 4 * unit,
        "image_max_pixels": 16 * unit,
        "video_min_pixels": 4 * unit,
        "video_max_pixels": 16 * unit,
        "min_frames": 2,
    }


def _language_shapes() -> dict[str, list[int]]:
    shapes = norm("model.norm", _HIDDEN, bias=False)
    for layer in range(_LAYERS):
        name = f"model.layers.{layer}"
        shapes |= norm(f"{name}.input_layernorm", _HIDDEN, bias=False)
        shapes |= norm(f"{name}.post_attention_layernorm", _HIDDEN, bias=False)
        shapes |= linear(f"{name}.self_attn.q_proj", _HIDDEN, _HEADS * _HEAD, bias=False)
        shapes |= linear(f"{name}.self_attn.k_proj", _HIDDEN, _HEAD, bias=False)
        shapes |= linear(f"{name}.self_attn.v_proj", _HIDDEN, _HEAD, bias=False)
        shapes |= linear(f"{name}.self_attn.o_proj", _HEADS * _HEAD, _HIDDEN, bias=False)
        shapes |= linear(f"{name}.mlp.gate_proj", _HIDDEN, _INNER, bias=False)
        shapes |= linear(f"{name}.mlp.up_proj", _HIDDEN, _INNER, bias=False)
        shapes |= linear(f"{name}.mlp.down_proj", _INNER, _HIDDEN, bias=False)
    return shapes


def _vision_shapes() -> dict[str, list[int]]:
    shapes = {"visual.patch_embed.proj.weight": [_WIDTH, 3, 2, _PATCH_SIZE, _PATCH_SIZE]}
    for block in range(2):
        name = f"visual.blocks.{block}"
        shapes |= norm(f"{name}.norm1", _WIDTH, bias=False)
        shapes |= norm(f"{name}.norm2", _WIDTH, bias=False)
        # Two heads of queries, one of keys and one of values, of 16 channels each.
        shapes |= linear(f"{name}.attn.qkv", _WIDTH, 4 * 16)
        shapes |= linear(f"{name}.attn.proj", 2 * 16, _WIDTH)
        shapes |= linear(f"{name}.mlp.gate_proj", _WIDTH, 64)
        shapes |= linear(f"{name}.mlp.up_proj", _WIDTH, 64)
        shapes |= linear(f"{name}.mlp.down_proj", 64, _WIDTH)
    merged = _MERGED * _WIDTH
    shapes |= norm("visual.merger.ln_q", _WIDTH, bias=False)
    shapes |= linear("visual.merger.mlp.0", merged, merged, bias=False)
    shapes |= linear("visual.merger.mlp.2", merged, _HIDDEN, bias=False)
    return shapes
