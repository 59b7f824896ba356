"""Gemma 3: newlines and begin/end tokens stand around an image's 4 soft tokens.

The placeholder of an image is 8 tokens long, of which vLLM embeds `.2 E4 .2`.
"""

from pathlib import Path

from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
)

from tests.checkpoints import tokenizer, weights

_IMAGE_TOKENS = 4
_IMAGE_SIZE = 32  # pixels

# Gemma has no system role: the system prompt opens the first user turn.
_CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- macro render(content) -%}
  {%- if content is string -%}
    {{- content | trim -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part['type'] == 'image' -%}
        {{- '<start_of_image>' -}}
      {%- elif part['type'] == 'text' -%}
        {{- part['text'] | trim -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if messages[0]['role'] == 'system' -%}
  {%- set system = render(messages[0]['content']) + '\\n\\n' -%}
  {%- set turns = messages[1:] -%}
{%- else -%}
  {%- set system = '' -%}
  {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
  {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
  {{- '<start_of_turn>' + role + '\\n' + (system if loop.first else '') -}}
  {{- render(message['content']) -}}
  {{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        [
            *("<pad>", "<eos>", "<bos>", "<unk>"),
            *("<start_of_turn>", "<end_of_turn>"),
            *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        ],
        # The processor writes "\n\n" around an image, and vLLM looks runs of newlines up as
        # single tokens where two images meet.
        plain=["\n", "\n\n", "\n\n\n", "\n\n\n\n"],
        named={
            "pad_token": "<pad>",
            "eos_token": "<eos>",
            "bos_token": "<bos>",
            "unk_token": "<unk>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    )
    bos, end_of_turn = text.convert_tokens_to_ids(["<bos>", "<end_of_turn>"])
    text.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    config = Gemma3Config(
        text_config={
            "vocab_size": len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "max_position_embeddings": 4096,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": _IMAGE_SIZE,
            "patch_size": 8,
            "vision_use_head": False,
        },
        mm_tokens_per_image=_IMAGE_TOKENS,
        boi_token_index=text.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=text.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=text.convert_tokens_to_ids("<image_soft_token>"),
        bos_token_id=bos,
        eos_token_id=[text.eos_token_id, end_of_turn],
        pad_token_id=text.pad_token_id,
        dtype="float32",
    )
    model = Gemma3ForConditionalGeneration(config)
    weights.randomize(model, seed=1)
    model.save_pretrained(path)
    # vLLM wants the names of the published checkpoints; transformers 5 leaves a level out.
    weights.rename_prefix(path, "vision_tower.", "vision_tower.vision_model.")
    Gemma3Processor(
        Gemma3ImageProcessor(size={"height": _IMAGE_SIZE, "width": _IMAGE_SIZE}),
        text,
        chat_template=_CHAT_TEMPLATE,
        image_seq_length=_IMAGE_TOKENS,
    ).save_pretrained(path)
    return path
