"""SmolVLM: an image is cut into tiles, with markers between the 4 tokens of each tile.

A square image makes 2 x 2 tiles and the whole image, of which vLLM embeds
`.2 E4 .2 E4 .3 E4 .2 E4 .4 E4 .1`.
"""

from pathlib import Path

from transformers import (
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from tests.checkpoints import tokenizer, weights

_TILE_SIZE = 32  # pixels
_PATCH_SIZE = 8  # pixels
_SCALE_FACTOR = 2
_TILE_TOKENS = (_TILE_SIZE // _PATCH_SIZE // _SCALE_FACTOR) ** 2
_LARGEST_GRID = 6

_CHAT_TEMPLATE = """\
<|im_start|>
{%- for message in messages -%}
  {{- message['role'] | capitalize + ':' -}}
  {%- if message['content'] is string -%}
    {{- ' ' + message['content'] -}}
  {%- else -%}
    {%- for part in message['content'] -%}
      {%- if part['type'] == 'image' -%}
        {{- '<image>' -}}
      {%- elif part['type'] == 'text' -%}
        {{- (' ' if loop.first else '') + part['text'] -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<end_of_utterance>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- 'Assistant:' -}}
{%- endif -%}
"""


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    grid = range(1, _LARGEST_GRID + 1)
    text = tokenizer.train(
        [
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<end_of_utterance>"),
            *("<global-img>", "<fake_token_around_image>", "<image>", "<video>"),
            *(f"<row_{row}_col_{column}>" for row in grid for column in grid),
        ],
        named={
            "pad_token": "<|im_end|>",
            "bos_token": "<|im_start|>",
            "eos_token": "<end_of_utterance>",
            "unk_token": "<|endoftext|>",
            "end_of_utterance_token": "<end_of_utterance>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "image_token": "<image>",
            "video_token": "<video>",
        },
    )
    ids = {
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "pad_token_id": text.pad_token_id,
    }
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            **ids,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": _TILE_SIZE,
            "patch_size": _PATCH_SIZE,
        },
        scale_factor=_SCALE_FACTOR,
        image_token_id=text.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=True,
        dtype="float32",
        **ids,
    )
    model = SmolVLMForConditionalGeneration(config)
    weights.randomize(model, seed=1)
    model.save_pretrained(path)
    sizes = {
        "size": {"longest_edge": 2 * _TILE_SIZE},
        "max_image_size": {"longest_edge": _TILE_SIZE},
    }
    SmolVLMProcessor(
        SmolVLMImageProcessor(**sizes),
        text,
        SmolVLMVideoProcessor(**sizes),
        image_seq_len=_TILE_TOKENS,
        chat_template=_CHAT_TEMPLATE,
    ).save_pretrained(path)
    return path
