"""Gemma 4: markers around images and sounds, and a time in front of each frame of a video.

Without conformer layers in the audio tower: vLLM's CPU build dies in those.
"""

from pathlib import Path

from transformers import (
    Gemma4AudioConfig,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4VideoProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_SOFT_TOKENS = 70
"""The fewest an image may be given."""


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [
            *TURN_TOKENS,
            *("<bos>", "<|image>", "<image|>", "<|image|>", "<|video|>"),
            *("<|audio>", "<audio|>", "<|audio|>"),
        ],
        named={
            **TURN_NAMES,
            "bos_token": "<bos>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "image_token": "<|image|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
            "audio_token": "<|audio|>",
        },
    )
    ids = text.convert_tokens_to_ids
    config = Gemma4Config(
        text_config={
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "vocab_size_per_layer_input": len(text),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 512,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "hidden_size_per_layer_input": 16,
            "max_position_embeddings": 4096,
            "bos_token_id": text.bos_token_id,
            "eos_token_id": text.eos_token_id,
            "pad_token_id": text.pad_token_id,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 8,
            "pooling_kernel_size": 2,
            "position_embedding_size": 256,
            "default_output_length": _SOFT_TOKENS,
        },
        audio_config=Gemma4AudioConfig(
            hidden_size=32,
            num_attention_heads=2,
            num_hidden_layers=0,
            # The first must be as many as the bins of the spectrum: vLLM does not check it.
            subsampling_conv_channels=[128, 4],
            output_proj_dims=32,
        ),
        boi_token_id=ids("<|image>"),
        eoi_token_id=ids("<image|>"),
        image_token_id=ids("<|image|>"),
        video_token_id=ids("<|video|>"),
        boa_token_id=ids("<|audio>"),
        eoa_token_index=ids("<audio|>"),
        audio_token_id=ids("<|audio|>"),
        dtype="float32",
    )
    model = Gemma4ForConditionalGeneration(config)
    weights.randomize(model, seed=10)
    model.save_pretrained(path)
    size = {"patch_size": 8, "pooling_kernel_size": 2, "max_soft_tokens": _SOFT_TOKENS}
    Gemma4Processor(
        Gemma4AudioFeatureExtractor(),
        Gemma4ImageProcessor(**size),
        text,
        Gemma4VideoProcessor(**size),
        image_seq_length=_SOFT_TOKENS,
        chat_template=chat_template(image="<|image|>", video="<|video|>", audio="<|audio|>"),
    ).save_pretrained(path)
    return path
