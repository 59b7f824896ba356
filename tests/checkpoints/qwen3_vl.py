"""Qwen3-VL: images are dense, a video has a timestamp in front of each pair of frames."""

from pathlib import Path

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

PATCH_SIZE = 16  # pixels
_PIXELS_PER_TOKEN = (2 * PATCH_SIZE) ** 2
_IMAGE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 16 * _PIXELS_PER_TOKEN}
# Of a whole video, frames and all.
_VIDEO = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 64 * _PIXELS_PER_TOKEN}

SPECIAL = (*TURN_TOKENS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
NAMED = {
    **TURN_NAMES,
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": PATCH_SIZE,
    "num_position_embeddings": 64,
}


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(SPECIAL, named=NAMED)
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            "eos_token_id": text.eos_token_id,
        },
        vision_config={**VISION, "out_hidden_size": 64, "deepstack_visual_indexes": [0, 1]},
        **media_token_ids(text),
        dtype="float32",
    )
    model = Qwen3VLForConditionalGeneration(config)
    weights.randomize(model, seed=5)
    model.save_pretrained(path)
    save_processor(path, text)
    return path


def media_token_ids(text: PreTrainedTokenizerFast) -> dict[str, int]:
    ids: dict[str, int] = {
        "image_token_id": text.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": text.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": text.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": text.convert_tokens_to_ids("<|vision_end|>"),
    }
    return ids


def save_processor(path: Path, text: PreTrainedTokenizerFast) -> None:
    Qwen3VLProcessor(
        Qwen2VLImageProcessor(size=_IMAGE, patch_size=PATCH_SIZE),
        text,
        Qwen3VLVideoProcessor(size=_VIDEO, patch_size=PATCH_SIZE),
        chat_template=chat_template(
            image="<|vision_start|><|image_pad|><|vision_end|>",
            video="<|vision_start|><|video_pad|><|vision_end|>",
        ),
    ).save_pretrained(path)
