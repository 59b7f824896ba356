"""Phi-3-V: 313 dense positions for an image, 457 for a wide or a high one.

vLLM builds CLIP-L/336 for it whatever the configuration says, and looks for the image's token at
32044. Without CLIP's layers, and in bfloat16, that still fits 5 MB.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.checkpoints import remote_config, tokenizer, weights
from tests.checkpoints.chat_template import TURN_NAMES, TURN_TOKENS, chat_template
from tests.checkpoints.weights import linear, norm

_HIDDEN = 32
_ROWS = 32064
_CLIP_WIDTH = 1024
_CLIP_LAYERS = 24
_PATCH_SIZE = 14  # pixels
_POSITIONS = 1 + (336 // _PATCH_SIZE) ** 2

# Each image is marked by its number.
_COUNTER = "{%- set seen = namespace(images=0) -%}"
_NUMBER = "NUMBER"
_NUMBERED = "{%- set seen.images = seen.images + 1 -%}{{- '<|image_' ~ seen.images ~ '|>' -}}"

_PROCESSOR = '''\
"""Made by the tests: what vLLM asks of Phi-3-V's processor."""

import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin

SIDE = 336
MOST_CROPS = 2


class Phi3VProcessor(ProcessorMixin):
    attributes = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer=None, **kwargs):
        super().__init__(tokenizer, **kwargs)
        self.img_tokens = [f"<|image_{number + 1}|>" for number in range(1000)]

    def crops(self, width, height):
        """Rows and columns of crops."""
        if width >= 2 * height:
            return 1, 2
        return (2, 1) if height >= 2 * width else (1, 1)

    def calc_num_image_tokens_from_image_size(self, width, height):
        rows, columns = self.crops(width, height)
        return (rows * columns + 1) * 144 + 1 + (rows + 1) * 12

    def __call__(self, text=None, images=None, return_tensors=None, **kwargs):
        texts = [text] if isinstance(text, str) else text
        data = {"input_ids": [self.tokenizer(each).input_ids for each in texts or [""]]}
        if images:
            made = [self.pixels(image) for image in images]
            data["pixel_values"] = torch.stack([pixels for pixels, _ in made])
            data["image_sizes"] = torch.tensor([size for _, size in made])
        return BatchFeature(data, tensor_type=return_tensors)

    def pixels(self, image):
        image = image.convert("RGB")
        rows, columns = self.crops(*image.size)
        whole = self.array(image.resize((SIDE, SIDE)))
        large = self.array(image.resize((columns * SIDE, rows * SIDE)))
        parts = large.reshape(3, rows, SIDE, columns, SIDE).permute(1, 3, 0, 2, 4)
        pixels = torch.zeros(1 + MOST_CROPS, 3, SIDE, SIDE)
        pixels[0], pixels[1 : 1 + rows * columns] = whole, parts.flatten(0, 1)
        return pixels, (rows * SIDE, columns * SIDE)

    def array(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 127.5 - 1
'''


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [*TURN_TOKENS, "<s>", "<|image|>"], named={**TURN_NAMES, "bos_token": "<s>"}
    )
    rows = _ROWS + (tokenizer.SPARE_ROWS if vocab_headroom else 0)
    language: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": _HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "pad_token_id": text.pad_token_id,
        "tie_word_embeddings": True,
    }
    remote_config.save(
        path,
        "Phi3VForCausalLM",
        {
            **language,
            "img_processor": {
                "image_dim_out": _CLIP_WIDTH,
                "num_img_tokens": 144,
                # Counted from the end: none of its layers.
                "layer_idx": -1 - _CLIP_LAYERS,
            },
            "embd_layer": {
                "use_hd_transform": True,
                "with_learnable_separator": True,
                "hd_transform_order": "sub_glb",
            },
            "dtype": "bfloat16",
        },
        model_type="phi3_v",
        parts={},
        text="",
        auto_map={"AutoProcessor": "processing.Phi3VProcessor"},
    )
    (path / "processing.py").write_text(_PROCESSOR)
    model = LlamaForCausalLM(LlamaConfig(**language))
    weights.randomize(model, seed=18)
    tensors = weights.renamed(model, {}) | weights.random_tensors(_shapes(), seed=18)
    del tensors["lm_head.weight"]
    weights.save(path, {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()})
    text.chat_template = _COUNTER + chat_template(image=_NUMBER).replace(
        f"{{{{- '{_NUMBER}' -}}}}", _NUMBERED
    )
    text.save_pretrained(path)
    return path


def _shapes() -> dict[str, list[int]]:
    tower = "model.vision_embed_tokens"
    clip = f"{tower}.img_processor.vision_model"
    shapes = {
        f"{tower}.glb_GN": [1, 1, 4 * _CLIP_WIDTH],
        f"{tower}.sub_GN": [1, 1, 1, 4 * _CLIP_WIDTH],
        f"{clip}.embeddings.class_embedding": [_CLIP_WIDTH],
        f"{clip}.embeddings.position_embedding.weight": [_POSITIONS, _CLIP_WIDTH],
        f"{clip}.embeddings.patch_embedding.weight": [_CLIP_WIDTH, 3, _PATCH_SIZE, _PATCH_SIZE],
    }
    shapes |= norm(f"{clip}.pre_layrnorm", _CLIP_WIDTH)
    shapes |= linear(f"{tower}.img_projection.0", 4 * _CLIP_WIDTH, _HIDDEN)
    shapes |= linear(f"{tower}.img_projection.2", _HIDDEN, _HIDDEN)
    return shapes
