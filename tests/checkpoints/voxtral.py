"""Voxtral and Voxtral Realtime, as far as a front end needs them: Mistral's formats, no weights.

Both pad a sound: the one to 30 seconds, which are 375 dense positions, the other by its delay.
"""

import base64
import json
from pathlib import Path
from typing import Any

from mistral_common.tokens.tokenizers.base import SpecialTokens

_BYTES = 256
_FRAMES_PER_SECOND = 12.5
_SPECTRUM = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
_RATE = 16_000


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    return save(path, realtime=False)


def save(path: Path, *, realtime: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    special = list(SpecialTokens)
    (path / "tekken.json").write_text(json.dumps(_tokenizer(special, realtime=realtime)))
    params = _params(len(special) + _BYTES, realtime=realtime)
    (path / "params.json").write_text(json.dumps(params, indent=2))
    return path


def _tokenizer(special: list[SpecialTokens], *, realtime: bool) -> dict[str, Any]:
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
            "default_vocab_size": len(special) + _BYTES,
            "default_num_special_tokens": len(special),
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
            for rank, token in enumerate(special)
        ],
        "audio": audio,
    }


def _params(rows: int, *, realtime: bool) -> dict[str, Any]:
    encoder: dict[str, Any] = {
        "audio_encoding_args": {**_SPECTRUM, "sampling_rate": _RATE},
        "dim": 32,
        "n_layers": 2,
        "hidden_dim": 64,
        "n_heads": 2,
        "n_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": rows,
        "max_source_positions": 1500,
    }
    if realtime:
        encoder |= {"causal": True, "sliding_window": 750, "pos_embed": "rope"}
    return {
        "dim": 64,
        "n_layers": 2,
        "head_dim": 32,
        "hidden_dim": 128,
        "n_heads": 2,
        "n_kv_heads": 1,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": rows,
        "max_position_embeddings": 4096,
        "max_seq_len": 4096,
        "tied_embeddings": True,
        "multimodal": {
            "whisper_model_args": {
                "encoder_args": encoder,
                "downsample_args": {"downsample_factor": 4},
            }
        },
    }
