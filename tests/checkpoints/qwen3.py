"""Qwen3, a model of text that thinks and calls tools, with the marks of other families as well.

The prompt opens the thinking, as Qwen3's later templates do, so that a thinking budget counts from
the first token; `enable_thinking` closes it again.
"""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.checkpoints import tokenizer, weights

_CHAT_TEMPLATE = """\
{%- if tools -%}
  {{- '<|im_start|>system\\nTools:' -}}
  {%- for tool in tools -%}{{- '\\n' + tool | tojson -}}{%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- if reasoning_effort is defined and reasoning_effort -%}
  {{- '<|im_start|>system\\nEffort: ' + reasoning_effort + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['reasoning_content'] -%}
    {{- '<think>\\n' + message['reasoning_content'] + '\\n</think>\\n\\n' -}}
  {%- endif -%}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- else -%}
    {%- for part in message['content'] or [] -%}{{- part['text'] -}}{%- endfor -%}
  {%- endif -%}
  {%- for call in message['tool_calls'] or [] -%}
    {{- '\\n<tool_call>\\n' + call['function'] | tojson + '\\n</tool_call>' -}}
  {%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n<think>\\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{- '\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}
"""

_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"),
)
# DeepSeek's marks have bars as wide as Chinese characters.
WIDE_BAR = "\uff5c"
_PLAIN = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    *(
        f"<{WIDE_BAR}tool▁{name}{WIDE_BAR}>"
        for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
    ),
)
# Where a grammar allows whitespace it allows any amount, of which a random model finds no end.
_WHITESPACE_SCALE = 0.05


def build(path: Path, *, vocab_headroom: bool = False) -> Path:
    text = tokenizer.train(
        _SPECIAL,
        plain=_PLAIN,
        named={"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
    )
    config = Qwen3Config(
        vocab_size=len(text) + (tokenizer.SPARE_ROWS if vocab_headroom else 0),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        bos_token_id=text.pad_token_id,
        eos_token_id=text.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    weights.randomize(model, seed=21)
    _shun_whitespace(model, text)
    model.save_pretrained(path)
    text.chat_template = _CHAT_TEMPLATE
    text.save_pretrained(path)
    return path


def _shun_whitespace(model: Qwen3ForCausalLM, text: PreTrainedTokenizerFast) -> None:
    blank = [token for token in range(len(text)) if text.decode([token]).isspace()]
    with torch.no_grad():
        model.get_output_embeddings().weight[blank] *= _WHITESPACE_SCALE
