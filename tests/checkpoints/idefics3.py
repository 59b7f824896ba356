"""Idefics3: an image is cut into tiles, each 4 tokens between markers; the mask is sparse."""

from pathlib import Path

from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_TILE_SIZE = 32  # pixels
_PATCH_SIZE = 8  # pixels
_SCALE_FACTOR = 2
_TILE_TOKENS = (_TILE_SIZE // _PATCH_SIZE // _SCALE_FACTOR) ** 2
_LARGEST_GRID = 6


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    grid = range(1, _LARGEST_GRID + 1)
    text = tokenizer.train(
        [
            *TURN_TOKENS,
            *("<end_of_utterance>", "<global-img>", "<fake_token_around_image>", "<image>"),
            *(f"<row_{row}_col_{column}>" for row in grid for column in grid),
        ],
        named={
            **TURN_NAMES,
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "image_token": "<image>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )
    config = Idefics3Config(
        text_config={
            "model_type": "llama",
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "pad_token_id": text.pad_token_id,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": _TILE_SIZE,
            "patch_size": _PATCH_SIZE,
        },
        scale_factor=_SCALE_FACTOR,
        image_token_id=text.convert_tokens_to_ids("<image>"),
        pad_token_id=text.pad_token_id,
        eos_token_id=text.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = Idefics3ForConditionalGeneration(config)
    weights.randomize(model, seed=3)
    model.save_pretrained(path)
    Idefics3Processor(
        Idefics3ImageProcessor(
            size={"longest_edge": 2 * _TILE_SIZE}, max_image_size={"longest_edge": _TILE_SIZE}
        ),
        text,
        image_seq_len=_TILE_TOKENS,
        chat_template=chat_template(image="<image>"),
    ).save_pretrained(path)
    return path
