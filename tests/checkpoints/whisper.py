"""Whisper: an encoder-decoder. A sound has no place in the prompt that the decoder continues.

The encoder hears 4 seconds at a time, so that a longer sound is split.
"""

from pathlib import Path

from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)
from vllm.model_executor.models.whisper_utils import ISO639_1_SUPPORTED_LANGS

from tests.checkpoints import tokenizer, weights

_SECONDS = 4
_FRAMES_PER_SECOND = 50  # of the encoder's output


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [
            *("<|endoftext|>", "<|startoftranscript|>"),
            *(f"<|{language}|>" for language in ISO639_1_SUPPORTED_LANGS),
            *("<|transcribe|>", "<|translate|>", "<|prev|>", "<|notimestamps|>"),
        ],
        # The last ids: whatever is not smaller than the first of them is taken for a time.
        plain=[f"<|{tick / 50:.2f}|>" for tick in range(_SECONDS * 50 + 1)],
        named={"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    )
    end, start = text.convert_tokens_to_ids(["<|endoftext|>", "<|startoftranscript|>"])
    config = WhisperConfig(
        vocab_size=len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
        num_mel_bins=80,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=128,
        max_source_positions=_SECONDS * _FRAMES_PER_SECOND,
        max_target_positions=448,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        dtype="float32",
    )
    model = WhisperForConditionalGeneration(config)
    weights.randomize(model, seed=31, last_norm=model.model.decoder.layer_norm.weight)
    model.save_pretrained(path)
    WhisperProcessor(WhisperFeatureExtractor(chunk_length=_SECONDS), text).save_pretrained(path)
    return path
