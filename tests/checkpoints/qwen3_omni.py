"""Qwen3-Omni's thinker: like Qwen2.5-Omni's, with experts and with media in deeper layers too."""

from pathlib import Path

from transformers import (
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from tests.checkpoints import qwen2_5_omni, tokenizer, weights

_PATCH_SIZE = 16  # pixels
_PIXELS_PER_TOKEN = (2 * _PATCH_SIZE) ** 2
_SIZE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 16 * _PIXELS_PER_TOKEN}


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(qwen2_5_omni.SPECIAL, named=qwen2_5_omni.NAMED)
    config = Qwen3OmniMoeConfig(
        thinker_config={
            "text_config": {
                "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
                "hidden_size": 64,
                "intermediate_size": 128,
                "moe_intermediate_size": 64,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 32,
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
                "eos_token_id": text.eos_token_id,
                # vLLM reads it here, transformers keeps it one level up.
                "tie_word_embeddings": False,
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "patch_size": _PATCH_SIZE,
                "num_position_embeddings": 64,
                "out_hidden_size": 64,
                "deepstack_visual_indexes": [0, 1],
                # transformers does not know these two, vLLM reads them.
                "image_size": 128,
                "apply_vit_abs_pos_embed": True,
            },
            "audio_config": {
                "d_model": 32,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 64,
                "downsample_hidden_size": 16,
                "output_dim": 64,
            },
            **qwen2_5_omni.media_token_ids(text),
        },
        enable_audio_output=False,
        dtype="float32",
    )
    model = Qwen3OmniMoeThinkerForConditionalGeneration(config.thinker_config)
    weights.randomize(model, seed=12)
    model.save_pretrained(path)
    weights.rename_prefix(path, "", "thinker.")
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    config.save_pretrained(path)
    Qwen3OmniMoeProcessor(
        Qwen2VLImageProcessor(size=_SIZE, patch_size=_PATCH_SIZE),
        Qwen2VLVideoProcessor(size=_SIZE, patch_size=_PATCH_SIZE),
        WhisperFeatureExtractor(feature_size=128),
        text,
        chat_template=qwen2_5_omni.CHAT_TEMPLATE,
    ).save_pretrained(path)
    return path
