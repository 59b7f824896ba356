"""Gemma 3n: 256 soft tokens for each image and 188 for each sound, between newlines and markers.

The masks are `.2 E256 .2` and `.2 E188 .2`, whatever the size and the length.
"""

from pathlib import Path

from transformers import (
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    SiglipImageProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template

_SOFT_TOKENS = 16
"""Rows of the vision and of the audio embedder, whose ids follow the text's."""
_IMAGE_SIZE = 512  # pixels, of which the tower makes 16 x 16 positions


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [
            *TURN_TOKENS,
            *("<bos>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
            *("<start_of_audio>", "<end_of_audio>", "<audio_soft_token>"),
        ],
        # Both are written around media, and vLLM looks runs of newlines up as single tokens.
        plain=["\n", "\n\n", "\n\n\n", "\n\n\n\n"],
        named={
            **TURN_NAMES,
            "bos_token": "<bos>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
            "boa_token": "<start_of_audio>",
            "eoa_token": "<end_of_audio>",
            "audio_token": "<audio_soft_token>",
        },
    )
    ids = text.convert_tokens_to_ids
    # The audio embedder has to end where the vocabulary does: its last row is the padding.
    rows = len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0)
    config = Gemma3nConfig(
        text_config={
            "vocab_size": rows + 2 * _SOFT_TOKENS,
            # As in the published model, ids beyond the tokenizer have no rows here.
            "vocab_size_per_layer_input": len(text),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 512,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 4,
            "laurel_rank": 16,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "max_position_embeddings": 4096,
            "bos_token_id": text.bos_token_id,
            "eos_token_id": text.eos_token_id,
            "pad_token_id": text.pad_token_id,
        },
        vision_config={
            # The published one has 300 million parameters, and at no width few enough.
            "architecture": "test_convnext",
            "hidden_size": 64,
            "vocab_size": _SOFT_TOKENS,
            "vocab_offset": rows,
        },
        audio_config={
            "hidden_size": 32,
            "conf_num_attention_heads": 2,
            "conf_num_hidden_layers": 1,
            "sscp_conv_channel_size": [8, 4],
            "vocab_size": _SOFT_TOKENS,
            "vocab_offset": rows + _SOFT_TOKENS,
        },
        boi_token_id=ids("<start_of_image>"),
        eoi_token_id=ids("<end_of_image>"),
        image_token_id=ids("<image_soft_token>"),
        boa_token_id=ids("<start_of_audio>"),
        eoa_token_id=ids("<end_of_audio>"),
        audio_token_id=ids("<audio_soft_token>"),
        dtype="float32",
    )
    model = Gemma3nForConditionalGeneration(config)
    weights.randomize(model, seed=9)
    model.save_pretrained(path)
    Gemma3nProcessor(
        Gemma3nAudioFeatureExtractor(),
        SiglipImageProcessor(size={"height": _IMAGE_SIZE, "width": _IMAGE_SIZE}),
        text,
        chat_template=chat_template(image="<image_soft_token>", audio="<audio_soft_token>"),
    ).save_pretrained(path)
    return path
