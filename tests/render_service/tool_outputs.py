"""What models of several families write when they think and call tools, each in its own marks.

The tokenizer of the checkpoint `qwen3` has a token for each of the marks that a family has one
for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.checkpoints.qwen3 import WIDE_BAR


@dataclass(frozen=True)
class Family:
    """
    Attributes:
        flags: that its parsers are chosen with.
        outputs: texts by what they show; the turn's last token follows, unless the name is one
            of `CUT_OFF`.
        differs_streamed: outputs that vLLM itself streams as something else than its plain answer,
            with the ways to cut them in which it does.
    """

    flags: tuple[str, ...]
    outputs: Mapping[str, str]
    differs_streamed: Mapping[str, str] = field(default_factory=dict)


CUT_OFF: Final = ("cut",)
"""Outputs that end at ``max_tokens``."""

_HERMES_BERLIN = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin", "days": 2}}\n</tool_call>'
)
_HERMES_TIME = (
    '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Asia/Tōkyō"}}\n</tool_call>'
)
_QWEN_BERLIN = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nBerlin\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
_QWEN_TIME = (
    "<tool_call>\n<function=get_time>\n<parameter=zone>\nAsia/Tōkyō\n</parameter>\n"
    "</function>\n</tool_call>"
)
_LLAMA_BERLIN = '{"name": "get_weather", "parameters": {"city": "Berlin", "days": 2}}'
_LLAMA_TIME = '{"name": "get_time", "parameters": {"zone": "Asia/Tōkyō"}}'
_DEEPSEEK_BERLIN = (
    "<|tool▁call▁begin|>function<|tool▁sep|>get_weather\n"
    '```json\n{"city": "Berlin", "days": 2}\n```<|tool▁call▁end|>'
)
_DEEPSEEK_TIME = (
    "<|tool▁call▁begin|>function<|tool▁sep|>get_time\n"
    '```json\n{"zone": "Asia/Tōkyō"}\n```<|tool▁call▁end|>'
)
_KIMI_BERLIN = (
    "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Berlin", "days": 2}<|tool_call_end|>'
)
_KIMI_TIME = (
    "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>"
    '{"zone": "Asia/Tōkyō"}<|tool_call_end|>'
)
_MISTRAL_BERLIN = '[TOOL_CALLS]get_weather[ARGS]{"city": "Berlin", "days": 2}'
_MISTRAL_TIME = '[TOOL_CALLS]get_time[ARGS]{"zone": "Asia/Tōkyō"}'
_THOUGHT = "The user asks for the weather 🌦 in Berlin.\n</think>\n\n"

FAMILIES: Final[Mapping[str, Family]] = {
    "hermes": Family(
        ("--tool-call-parser=hermes",),
        {
            "text": "The weather is fine, and 2 < 3 & 4 > 1: <b>日本語</b> 🎉.",
            "call": _HERMES_BERLIN,
            "two calls": f"{_HERMES_BERLIN}\n{_HERMES_TIME}",
            "text and call": f"I shall look that up. 🎉\n{_HERMES_BERLIN}",
            "malformed": '<tool_call>\n{"name": "get_weather", "arguments": {"city" Berlin}}\n'
            "</tool_call>",
            "cut": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ber',
        },
        {"malformed": "tokens chance one", "cut": "tokens chance one"},
    ),
    "hermes, qwen3": Family(
        ("--tool-call-parser=hermes", "--reasoning-parser=qwen3"),
        {
            "thought and text": f"{_THOUGHT}It rains. 🌧",
            "thought and call": f"{_THOUGHT}{_HERMES_BERLIN}",
            "thought, text and two calls": f"{_THOUGHT}Well.\n{_HERMES_BERLIN}\n{_HERMES_TIME}",
            "cut": "The user asks for the wea",
        },
    ),
    "hermes, deepseek_r1": Family(
        ("--tool-call-parser=hermes", "--reasoning-parser=deepseek_r1"),
        {
            "thought and text": f"{_THOUGHT}It rains. 🌧",
            "thought and call": f"{_THOUGHT}{_HERMES_BERLIN}",
            "thought, text and two calls": f"{_THOUGHT}Well.\n{_HERMES_BERLIN}\n{_HERMES_TIME}",
            "opened thought": f"<think>\n{_THOUGHT}It rains.",
            "cut": "The user asks for the wea",
        },
        {"opened thought": "chance"},
    ),
    "qwen3_coder, qwen3": Family(
        ("--tool-call-parser=qwen3_coder", "--reasoning-parser=qwen3"),
        {
            "thought and text": f"{_THOUGHT}It rains. 🌧",
            "thought and call": f"{_THOUGHT}{_QWEN_BERLIN}",
            "thought, text and two calls": f"{_THOUGHT}Well.\n{_QWEN_BERLIN}\n{_QWEN_TIME}",
            "call within the thought": f"The user asks.\n{_QWEN_BERLIN}",
            "malformed": f"{_THOUGHT}<tool_call>\n<function=get_weather\n</function>\n</tool_call>",
            "cut": f"{_THOUGHT}<tool_call>\n<function=get_weather>\n<parameter=city>\nBer",
        },
        {"malformed": "tokens chance one", "cut": "tokens chance one"},
    ),
    "llama3_json": Family(
        ("--tool-call-parser=llama3_json",),
        {
            "text": "The weather is fine. 🎉",
            "call": _LLAMA_BERLIN,
            "marked call": f"<|python_tag|>{_LLAMA_BERLIN}",
            "two calls": f"{_LLAMA_BERLIN}; {_LLAMA_TIME}",
            "malformed": '{"name": "get_weather", "parameters": {"city" Berlin}}',
            "cut": '{"name": "get_weather", "parameters": {"city": "Ber',
        },
        {
            "call": "one",
            "marked call": "one",
            "two calls": "one",
            "malformed": "tokens chance one",
            "cut": "tokens chance one",
        },
    ),
    "pythonic": Family(
        ("--tool-call-parser=pythonic",),
        {
            "text": "The weather is fine. 🎉",
            "call": '[get_weather(city="Berlin", days=2)]',
            "two calls": '[get_weather(city="Berlin", days=2), get_time(zone="Asia/Tōkyō")]',
            "malformed": '[get_weather(city="Berlin" days=2)]',
            "cut": '[get_weather(city="Ber',
        },
        {"malformed": "tokens chance one", "cut": "tokens chance one"},
    ),
    "mistral": Family(
        ("--tool-call-parser=mistral",),
        {
            "text": "The weather is fine. 🎉",
            "call": _MISTRAL_BERLIN,
            "two calls": f"{_MISTRAL_BERLIN}{_MISTRAL_TIME}",
            "text and call": f"I shall look that up.{_MISTRAL_BERLIN}",
            "malformed": '[TOOL_CALLS]get_weather[ARGS]{"city" Berlin}',
            "cut": '[TOOL_CALLS]get_weather[ARGS]{"city": "Ber',
        },
        {"cut": "tokens chance one"},
    ),
    "deepseek_v3, deepseek_r1": Family(
        ("--tool-call-parser=deepseek_v3", "--reasoning-parser=deepseek_r1"),
        {
            shown: text.replace("|", WIDE_BAR)
            for shown, text in {
                "thought and text": f"{_THOUGHT}It rains. 🌧",
                "thought and call": f"{_THOUGHT}<|tool▁calls▁begin|>{_DEEPSEEK_BERLIN}"
                "<|tool▁calls▁end|>",
                "thought, text and two calls": f"{_THOUGHT}Well.<|tool▁calls▁begin|>"
                f"{_DEEPSEEK_BERLIN}\n{_DEEPSEEK_TIME}<|tool▁calls▁end|>",
                "cut": f"{_THOUGHT}<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>"
                'get_weather\n```json\n{"city": "Ber',
            }.items()
        },
        {
            "thought and call": "one",
            "thought, text and two calls": "one",
            "cut": "tokens chance one",
        },
    ),
    "kimi_k2": Family(
        ("--tool-call-parser=kimi_k2", "--reasoning-parser=kimi_k2"),
        {
            "thought and text": f"{_THOUGHT}It rains. 🌧",
            "thought, text and two calls": f"{_THOUGHT}Well.<|tool_calls_section_begin|>"
            f"{_KIMI_BERLIN}{_KIMI_TIME}<|tool_calls_section_end|>",
            "call within the thought": "The user asks.<|tool_calls_section_begin|>"
            f"{_KIMI_BERLIN}<|tool_calls_section_end|>",
            "cut": "The user asks.</think><|tool_calls_section_begin|><|tool_call_begin|>"
            'functions.get_weather:0<|tool_call_argument_begin|>{"city": "Ber',
        },
        {"cut": "tokens chance one"},
    ),
}
