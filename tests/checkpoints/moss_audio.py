"""MOSS-Audio: markers around each sound, and the time inside it every two seconds.

A sound of 5 seconds has the mask `.1 E25 .1 E25 .1 E13 .1`.
"""

import json
from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.checkpoints import remote_config, tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template
from tests.checkpoints.weights import linear, norm

_HIDDEN = 64
_WIDTH = 32
_CHANNELS = 8
_MEL_BINS = 128
_AUDIO = {
    "d_model": _WIDTH,
    "output_dim": _WIDTH,
    "num_mel_bins": _MEL_BINS,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "downsample_hidden_size": _CHANNELS,
    "deepstack_encoder_layer_indexes": [0],
}


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], named=TURN_NAMES
    )
    language = Qwen3Config(
        vocab_size=len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
        hidden_size=_HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        eos_token_id=text.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(language)
    weights.randomize(model, seed=14)
    remote_config.save(
        path,
        "MossAudioModel",
        {
            "audio_config": _AUDIO,
            "language_config": language.to_dict(),
            "adapter_hidden_size": 64,
            "deepstack_num_inject_layers": 1,
            "vocab_size": language.vocab_size,
            "eos_token_id": text.eos_token_id,
            "tie_word_embeddings": False,
        },
        model_type="moss_audio",
        parts={"audio_config": "config", "language_config": "qwen3"},
        text="language_config",
    )
    tensors = weights.renamed(model, {"model.": "language_model."})
    weights.save(path, tensors | weights.random_tensors(_shapes(), seed=14))
    text.chat_template = chat_template(audio="<|audio_bos|><|AUDIO|><|audio_eos|>")
    text.save_pretrained(path)
    ids = text.convert_tokens_to_ids
    processor = {
        "audio_token_id": ids("<|AUDIO|>"),
        "audio_start_id": ids("<|audio_bos|>"),
        "audio_end_id": ids("<|audio_eos|>"),
        "enable_time_marker": True,
        "mel_config": {"mel_dim": _MEL_BINS},
    }
    (path / "processor_config.json").write_text(json.dumps(processor, indent=2))
    return path


def _shapes() -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for number, channels in enumerate([1, _CHANNELS, _CHANNELS], 1):
        shapes[f"audio_encoder.conv{number}.weight"] = [_CHANNELS, channels, 3, 3]
        shapes[f"audio_encoder.conv{number}.bias"] = [_CHANNELS]
    # Each convolution halves the bins of the spectrum.
    shapes |= linear("audio_encoder.stem_proj", _CHANNELS * _MEL_BINS // 8, _WIDTH)
    for layer in range(2):
        name = f"audio_encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= linear(f"{name}.self_attn.{part}", _WIDTH, _WIDTH, bias=part != "k_proj")
        shapes |= norm(f"{name}.self_attn_layer_norm", _WIDTH)
        shapes |= linear(f"{name}.fc1", _WIDTH, 64) | linear(f"{name}.fc2", 64, _WIDTH)
        shapes |= norm(f"{name}.final_layer_norm", _WIDTH)
    shapes |= norm("audio_encoder.layer_norm", _WIDTH)
    for name in ("audio_adapter", "deepstack_audio_merger_list.0"):
        shapes |= linear(f"{name}.gate_proj", _WIDTH, 64, bias=False)
        shapes |= linear(f"{name}.up_proj", _WIDTH, 64, bias=False)
        shapes |= linear(f"{name}.down_proj", 64, _HIDDEN, bias=False)
    return shapes
