"""Qwen3-ASR: a dense placeholder for each sound, between markers of the chat template."""

from pathlib import Path

from transformers import (
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
)

from tests.checkpoints import tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"],
        named={
            **TURN_NAMES,
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    config = Qwen3ASRConfig(
        text_config={
            "model_type": "qwen3",
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "eos_token_id": text.eos_token_id,
        },
        audio_config={
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "downsample_hidden_size": 16,
            "output_dim": 64,
        },
        audio_token_id=text.convert_tokens_to_ids("<|audio_pad|>"),
        pad_token_id=text.pad_token_id,
        eos_token_id=text.eos_token_id,
        dtype="float32",
    )
    model = Qwen3ASRForConditionalGeneration(config)
    weights.randomize(model, seed=13)
    model.save_pretrained(path)
    Qwen3ASRProcessor(
        Qwen3ASRFeatureExtractor(),
        text,
        chat_template=chat_template(audio="<|audio_start|><|audio_pad|><|audio_end|>"),
    ).save_pretrained(path)
    return path
