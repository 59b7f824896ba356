"""A chat template in the form that most families share, with each family's own media markers."""

_CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- else -%}
    {%- for part in message['content'] -%}
      {%- if part['type'] == 'text' -%}
        {{- part['text'] -}}
      MEDIA
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

TURN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TURN_NAMES = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


def chat_template(**markers: str) -> str:
    """ChatML that writes `markers[type]` for a content part of that type."""
    media = "".join(
        f"{{%- elif part['type'] == '{kind}' -%}}{{{{- '{marker}' -}}}}"
        for kind, marker in markers.items()
    )
    return _CHAT_TEMPLATE.replace("MEDIA", media)
