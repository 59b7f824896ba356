"""Nemotron Nano Omni: markers around images and sounds; a hybrid language model with Mamba layers.

vLLM computes the sound's projection in bfloat16, and so must the rest of the model be.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM, ParakeetEncoder
from transformers.models.parakeet import ParakeetEncoderConfig

from tests.checkpoints import remote_config, tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template
from tests.checkpoints.weights import linear, norm

_HIDDEN = 64
_WIDTH = 32
_INNER = 64
_PATCH_SIZE = 16  # pixels
_IMAGE_SIZE = 64  # pixels
_MERGED = 4
"""Patches that make one token."""

_VISION: dict[str, Any] = {
    "patch_size": _PATCH_SIZE,
    "preferred_resolution": [_IMAGE_SIZE, _IMAGE_SIZE],
    "args": {
        # Of the models that vLLM has by name; what follows makes it smaller.
        "model": "vit_small_patch16_224",
        "hidden_size": _WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": _INNER,
        "cpe_max_size": 2 * _IMAGE_SIZE,
        "min_num_patches": 16,
        "max_num_patches": 64,
    },
}
_SOUND: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": _INNER,
    "subsampling_conv_channels": 8,
    "num_mel_bins": 128,
    "convolution_bias": False,
}


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<img>", "</img>", "<image>", "<so_start>", "<so_end>", "<so_embedding>"],
        plain=["<video>"],
        named=TURN_NAMES,
    )
    language = NemotronHConfig(
        architectures=["NemotronHForCausalLM"],
        vocab_size=len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
        hidden_size=_HIDDEN,
        intermediate_size=128,
        layers_block_type=["mamba", "attention", "mlp"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=1,
        chunk_size=16,
        max_position_embeddings=4096,
        bos_token_id=text.pad_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
        dtype="bfloat16",
    )
    model = NemotronHForCausalLM(language)
    weights.randomize(model, seed=16, last_norm=model.model.norm_f.weight)
    remote_config.save(
        path,
        "NemotronH_Nano_Omni_Reasoning_V3",
        {
            "text_config": language.to_dict(),
            "vision_config": _VISION,
            "sound_config": {
                **_SOUND,
                "projection_hidden_size": _INNER,
                "projection_bias": False,
                "sampling_rate": 16_000,
                "subsampling_factor": 8,
                "subsampling_conv_kernel_size": 3,
                "subsampling_conv_stride": 2,
            },
            "force_image_size": _IMAGE_SIZE,
            "patch_size": _PATCH_SIZE,
            "downsample_ratio": 0.5,
            "ps_version": "v2",
            "image_tag_type": "internvl",
            "template": "chatml",
            "use_thumbnail": True,
            "vit_hidden_size": _WIDTH,
            "projector_hidden_size": _INNER,
            "norm_mean": [0.5, 0.5, 0.5],
            "norm_std": [0.5, 0.5, 0.5],
            "vocab_size": language.vocab_size,
            "eos_token_id": text.eos_token_id,
            "dtype": "bfloat16",
        },
        model_type="nemotron_nano_omni",
        parts={"text_config": "nemotron_h", "vision_config": "config", "sound_config": "config"},
        text="text_config",
    )
    sound = ParakeetEncoder(
        ParakeetEncoderConfig(**_SOUND, scale_input=False, attention_bias=False)
    )
    tensors = weights.renamed(model, {"model.": "language_model.backbone.", "lm_head.": _HEAD})
    tensors |= _sound(sound) | weights.random_tensors(_shapes(), seed=16)
    weights.save(path, {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()})
    text.chat_template = chat_template(image="<image>", video="<video>", audio="<so_embedding>")
    text.save_pretrained(path)
    return path


_HEAD = "language_model.lm_head."


def _sound(encoder: ParakeetEncoder) -> dict[str, torch.Tensor]:
    drawn = weights.random_tensors(
        {name: parameter.shape for name, parameter in encoder.named_parameters()}, seed=17
    )
    # The running statistics of its norms are buffers, and stay as they are.
    return {
        f"sound_encoder.encoder.{name}": drawn.get(name, tensor)
        for name, tensor in encoder.state_dict().items()
    }


def _shapes() -> dict[str, list[int]]:
    radio = "vision_model.radio_model.model"
    patches = (2 * _IMAGE_SIZE // _PATCH_SIZE) ** 2
    shapes = {
        f"{radio}.patch_generator.pos_embed": [1, patches, _WIDTH],
        f"{radio}.patch_generator.cls_token.token": [1, _WIDTH],
    }
    shapes |= linear(f"{radio}.patch_generator.embedder", 3 * _PATCH_SIZE**2, _WIDTH, bias=False)
    for block in range(2):
        name = f"{radio}.blocks.{block}"
        shapes |= norm(f"{name}.norm1", _WIDTH) | norm(f"{name}.norm2", _WIDTH)
        shapes |= linear(f"{name}.attn.qkv", _WIDTH, 3 * _WIDTH)
        shapes |= linear(f"{name}.attn.proj", _WIDTH, _WIDTH)
        shapes |= linear(f"{name}.mlp.fc1", _WIDTH, _INNER)
        shapes |= linear(f"{name}.mlp.fc2", _INNER, _WIDTH)
    shapes |= norm("mlp1.0", _MERGED * _WIDTH, bias=False)
    shapes |= linear("mlp1.1", _MERGED * _WIDTH, _INNER, bias=False)
    shapes |= linear("mlp1.3", _INNER, _HIDDEN, bias=False)
    shapes |= norm("sound_projection.norm", _WIDTH, bias=False)
    shapes |= linear("sound_projection.linear1", _WIDTH, _INNER, bias=False)
    shapes |= linear("sound_projection.linear2", _INNER, _HIDDEN, bias=False)
    return shapes
