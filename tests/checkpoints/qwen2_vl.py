"""Qwen2-VL: every position of an image's placeholder is embedded, so there is no mask.

An image takes 4 to 16 tokens, by its size.
"""

from pathlib import Path

from transformers import (
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from tests.checkpoints import tokenizer, weights

_PIXELS_PER_TOKEN = 28 * 28
_SIZE = {"shortest_edge": 4 * _PIXELS_PER_TOKEN, "longest_edge": 16 * _PIXELS_PER_TOKEN}

_CHAT_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' -%}
  {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- else -%}
    {%- for part in message['content'] -%}
      {%- if part['type'] == 'image' -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- elif part['type'] == 'video' -%}
        {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
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


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        ],
        named={
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
        },
    )
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]},
            "bos_token_id": text.pad_token_id,
            "eos_token_id": text.eos_token_id,
        },
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
        image_token_id=text.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=text.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=text.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=text.convert_tokens_to_ids("<|vision_end|>"),
        eos_token_id=[text.eos_token_id, text.pad_token_id],
        dtype="float32",
    )
    model = Qwen2VLForConditionalGeneration(config)
    weights.randomize(model, seed=2)
    model.save_pretrained(path)
    Qwen2VLProcessor(
        Qwen2VLImageProcessor(size=_SIZE),
        text,
        Qwen2VLVideoProcessor(size=_SIZE),
        chat_template=_CHAT_TEMPLATE,
    ).save_pretrained(path)
    return path
