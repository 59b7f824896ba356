"""Qwen2.5-VL: dense placeholders, and windows in the vision tower's attention."""

from pathlib import Path

from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_PIXELS_PER_TOKEN = 28 * 28
_SIZE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 16 * _PIXELS_PER_TOKEN}


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        named={**TURN_NAMES, "image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
    )
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            "bos_token_id": text.pad_token_id,
            "eos_token_id": text.eos_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        image_token_id=text.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=text.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=text.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=text.convert_tokens_to_ids("<|vision_end|>"),
        dtype="float32",
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    weights.randomize(model, seed=4)
    model.save_pretrained(path)
    Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=_SIZE),
        text,
        Qwen2VLVideoProcessor(size=_SIZE),
        chat_template=chat_template(
            image="<|vision_start|><|image_pad|><|vision_end|>",
            video="<|vision_start|><|video_pad|><|vision_end|>",
        ),
    ).save_pretrained(path)
    return path
