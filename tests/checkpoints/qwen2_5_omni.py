"""Qwen2.5-Omni's thinker: images, sounds, videos, and a video's own sound woven into it."""

from pathlib import Path

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniConfig,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_PIXELS_PER_TOKEN = 28 * 28
_SIZE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 16 * _PIXELS_PER_TOKEN}

SPECIAL = (
    *TURN_TOKENS,
    *("<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>"),
    *("<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>"),
)
NAMED = {
    **TURN_NAMES,
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_token": "<|AUDIO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
CHAT_TEMPLATE = chat_template(
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
)


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(SPECIAL, named=NAMED)
    config = Qwen2_5OmniConfig(
        thinker_config={
            "text_config": {
                "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
                "tie_word_embeddings": False,
                "eos_token_id": text.eos_token_id,
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "window_size": 56,
                "fullatt_block_indexes": [1],
            },
            "audio_config": {
                "d_model": 32,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 64,
                "output_dim": 64,
                "max_source_positions": 1500,
            },
            **media_token_ids(text),
        },
        enable_audio_output=False,
        dtype="float32",
    )
    model = Qwen2_5OmniThinkerForConditionalGeneration(config.thinker_config)
    weights.randomize(model, seed=11)
    model.save_pretrained(path)
    weights.rename_prefix(path, "", "thinker.")
    config.architectures = ["Qwen2_5OmniForConditionalGeneration"]
    config.save_pretrained(path)
    Qwen2_5OmniProcessor(
        Qwen2VLImageProcessor(size=_SIZE),
        Qwen2VLVideoProcessor(size=_SIZE),
        WhisperFeatureExtractor(feature_size=128),
        text,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(path)
    return path


def media_token_ids(text: PreTrainedTokenizerFast) -> dict[str, int]:
    ids: dict[str, int] = {
        "image_token_id": text.convert_tokens_to_ids("<|IMAGE|>"),
        "video_token_id": text.convert_tokens_to_ids("<|VIDEO|>"),
        "audio_token_id": text.convert_tokens_to_ids("<|AUDIO|>"),
        "vision_start_token_id": text.convert_tokens_to_ids("<|vision_bos|>"),
        "vision_end_token_id": text.convert_tokens_to_ids("<|vision_eos|>"),
        "audio_start_token_id": text.convert_tokens_to_ids("<|audio_bos|>"),
        "audio_end_token_id": text.convert_tokens_to_ids("<|audio_eos|>"),
    }
    return ids
