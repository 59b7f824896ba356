"""LLaVA-OneVision: dense placeholders, with a learned row between the lines of an image."""

from pathlib import Path

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_TILE_SIZE = 32  # pixels
_PATCH_SIZE = 8  # pixels
_GRIDS = [[_TILE_SIZE * rows, _TILE_SIZE * columns] for rows in (1, 2) for columns in (1, 2)]


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<image>", "<video>"],
        named={**TURN_NAMES, "image_token": "<image>", "video_token": "<video>"},
    )
    config = LlavaOnevisionConfig(
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "eos_token_id": text.eos_token_id,
        },
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": _TILE_SIZE,
            "patch_size": _PATCH_SIZE,
            "vision_use_head": False,
        },
        image_token_index=text.convert_tokens_to_ids("<image>"),
        video_token_index=text.convert_tokens_to_ids("<video>"),
        vision_feature_layer=-1,
        vision_aspect_ratio="anyres_max_9",
        image_grid_pinpoints=_GRIDS,
        tie_word_embeddings=False,
        dtype="float32",
    )
    # The row between an image's lines starts at random, and randomize() only adds to vectors.
    torch.manual_seed(7)
    model = LlavaOnevisionForConditionalGeneration(config)
    weights.randomize(model, seed=7)
    model.save_pretrained(path)
    # vLLM wants the names of the published checkpoints; transformers 5 leaves a level out.
    weights.rename_prefix(path, "vision_tower.", "vision_tower.vision_model.")
    size = {"height": _TILE_SIZE, "width": _TILE_SIZE}
    LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=_GRIDS),
        text,
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(_TILE_SIZE // _PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_9",
        chat_template=chat_template(image="<image>", video="<video>"),
    ).save_pretrained(path)
    return path
