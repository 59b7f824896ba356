"""LFM2-VL: begin and end tokens around each image, so that the mask is sparse."""

from pathlib import Path

from transformers import (
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Lfm2VlImageProcessor,
    Lfm2VlProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_TILE_SIZE = 64  # pixels
_PATCH_SIZE = 16  # pixels


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    grid = range(1, 11)
    text = tokenizer.train(
        [
            *TURN_TOKENS,
            *("<|startoftext|>", "<image>", "<|image_start|>", "<|image_end|>"),
            "<|img_thumbnail|>",
            *(f"<|img_row_{row}_col_{column}|>" for row in grid for column in grid),
        ],
        named={
            **TURN_NAMES,
            "bos_token": "<|startoftext|>",
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail": "<|img_thumbnail|>",
        },
    )
    config = Lfm2VlConfig(
        text_config={
            "model_type": "lfm2",
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "layer_types": ["conv", "full_attention"],
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "conv_dim": 64,
            "block_dim": 64,
            "block_auto_adjust_ff_dim": False,
            "max_position_embeddings": 4096,
            "bos_token_id": text.bos_token_id,
            "eos_token_id": text.eos_token_id,
            "pad_token_id": text.pad_token_id,
        },
        vision_config={
            "model_type": "siglip2_vision_model",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_patches": 16,
            "patch_size": _PATCH_SIZE,
            "vision_use_head": False,
        },
        image_token_id=text.convert_tokens_to_ids("<image>"),
        projector_hidden_size=64,
        tie_word_embeddings=True,
        dtype="float32",
    )
    model = Lfm2VlForConditionalGeneration(config)
    weights.randomize(model, seed=8, last_norm=model.get_decoder().embedding_norm.weight)
    model.save_pretrained(path)
    # vLLM wants the names of the published checkpoints; transformers 5 leaves a level out.
    weights.rename_prefix(path, "model.vision_tower.", "model.vision_tower.vision_model.")
    Lfm2VlProcessor(
        Lfm2VlImageProcessor(
            encoder_patch_size=_PATCH_SIZE,
            tile_size=_TILE_SIZE,
            min_image_tokens=4,
            max_image_tokens=16,
            max_num_patches=64,
            min_tiles=2,
            max_tiles=4,
        ),
        text,
        chat_template=chat_template(image="<image>"),
    ).save_pretrained(path)
    return path
