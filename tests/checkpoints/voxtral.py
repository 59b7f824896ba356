"""Voxtral, in Mistral's formats: a sound is padded to 30 seconds, which are 375 dense positions.

Voxtral Realtime shares its tokenizer and its configuration, and has no weights here.
"""

import base64
import json
from pathlib import Path
from typing import Any

from mistral_common.tokens.tokenizers.base import SpecialTokens
from safetensors.torch import save_file

from tests.checkpoints import weights
from tests.checkpoints.weights import linear, norm

_HIDDEN = 64
_INNER = 128
_HEADS = 2
_HEAD = 32
_WIDTH = 32
_LAYERS = 2
_DOWNSAMPLING = 4
_BYTES = 256
_FRAMES_PER_SECOND = 12.5
_SPECTRUM = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
_RATE = 16_000
_SPECIAL = tuple(SpecialTokens)
_ROWS = len(_SPECIAL) + _BYTES


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    save(path, realtime=False)
    tables = {name: [_ROWS, _HIDDEN] for name in ("tok_embeddings.weight", "output.weight")}
    tensors = weights.random_tensors(_language_shapes() | _audio_shapes(), seed=19)
    tensors |= weights.token_tables(tables, seed=19)
    weights.spread(tensors["norm.weight"])
    save_file(tensors, path / "consolidated.safetensors")
    return path


def save(path: Path, *, realtime: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "tekken.json").write_text(json.dumps(_tokenizer(realtime=realtime)))
    (path / "params.json").write_text(json.dumps(_params(realtime=realtime), indent=2))
    return path


def _tokenizer(*, realtime: bool) -> dict[str, Any]:
    """Every byte is a token, and after the special ones nothing else is."""
    audio: dict[str, Any] = {
        "sampling_rate": _RATE,
        "frame_rate": _FRAMES_PER_SECOND,
        "audio_encoding_config": dict(_SPECTRUM),
    }
    if realtime:
        audio |= {
            "transcription_format": "streaming",
            "transcription_delay_ms": 480.0,
            "streaming_look_ahead_ms": 2.5,
            "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": 32,
        }
    else:
        audio["chunk_length_s"] = 30.0
    return {
        "config": {
            "pattern": r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
            "num_vocab_tokens": _BYTES,
            "default_vocab_size": _ROWS,
            "default_num_special_tokens": len(_SPECIAL),
            "version": "v13" if realtime else "v7",
        },
        "vocab": [
            {
                "rank": byte,
                "token_bytes": base64.b64encode(bytes([byte])).decode(),
                "token_str": chr(byte) if byte < 128 else None,
            }
            for byte in range(_BYTES)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token.value, "is_control": True}
            for rank, token in enumerate(_SPECIAL)
        ],
        "audio": audio,
    }


def _params(*, realtime: bool) -> dict[str, Any]:
    encoder: dict[str, Any] = {
        "audio_encoding_args": {**_SPECTRUM, "sampling_rate": _RATE},
        "dim": _WIDTH,
        "n_layers": _LAYERS,
        "hidden_dim": 64,
        "n_heads": 2,
        "n_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": _ROWS,
        "max_source_positions": 1500,
    }
    if realtime:
        encoder |= {"causal": True, "sliding_window": 750, "pos_embed": "rope"}
    return {
        "dim": _HIDDEN,
        "n_layers": _LAYERS,
        "head_dim": _HEAD,
        "hidden_dim": _INNER,
        "n_heads": 2,
        "n_kv_heads": 1,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": _ROWS,
        "max_position_embeddings": 4096,
        "max_seq_len": 4096,
        "tied_embeddings": False,
        "multimodal": {
            "whisper_model_args": {
                "encoder_args": encoder,
                "downsample_args": {"downsample_factor": _DOWNSAMPLING},
            }
        },
    }


def _language_shapes() -> dict[str, list[int]]:
    shapes = norm("norm", _HIDDEN, bias=False)
    for layer in range(_LAYERS):
        name = f"layers.{layer}"
        shapes |= norm(f"{name}.attention_norm", _HIDDEN, bias=False)
        shapes |= norm(f"{name}.ffn_norm", _HIDDEN, bias=False)
        shapes |= linear(f"{name}.attention.wq", _HIDDEN, _HEADS * _HEAD, bias=False)
        shapes |= linear(f"{name}.attention.wk", _HIDDEN, _HEAD, bias=False)
        shapes |= linear(f"{name}.attention.wv", _HIDDEN, _HEAD, bias=False)
        shapes |= linear(f"{name}.attention.wo", _HEADS * _HEAD, _HIDDEN, bias=False)
        shapes |= linear(f"{name}.feed_forward.w1", _HIDDEN, _INNER, bias=False)
        shapes |= linear(f"{name}.feed_forward.w2", _INNER, _HIDDEN, bias=False)
        shapes |= linear(f"{name}.feed_forward.w3", _HIDDEN, _INNER, bias=False)
    return shapes


def _audio_shapes() -> dict[str, list[int]]:
    embeddings = "mm_whisper_embeddings"
    encoder = f"{embeddings}.whisper_encoder"
    shapes = {
        f"{encoder}.conv_layers.0.weight": [_WIDTH, _SPECTRUM["num_mel_bins"], 3],
        f"{encoder}.conv_layers.0.bias": [_WIDTH],
        f"{encoder}.conv_layers.1.weight": [_WIDTH, _WIDTH, 3],
        f"{encoder}.conv_layers.1.bias": [_WIDTH],
    }
    for layer in range(_LAYERS):
        name = f"{encoder}.transformer.layers.{layer}"
        for part in ("wq", "wk", "wv", "wo"):
            shapes |= linear(f"{name}.attention.{part}", _WIDTH, _WIDTH, bias=part != "wk")
        shapes |= norm(f"{name}.attention_norm", _WIDTH) | norm(f"{name}.ffn_norm", _WIDTH)
        shapes |= linear(f"{name}.feed_forward.w1", _WIDTH, 64)
        shapes |= linear(f"{name}.feed_forward.w2", 64, _WIDTH)
    shapes |= norm(f"{encoder}.transformer.norm", _WIDTH)
    projection = f"{embeddings}.audio_language_projection"
    shapes |= linear(f"{projection}.0", _DOWNSAMPLING * _WIDTH, _HIDDEN, bias=False)
    shapes |= linear(f"{projection}.2", _HIDDEN, _HIDDEN, bias=False)
    return shapes
