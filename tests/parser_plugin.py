"""A plugin as an operator writes one: parsers of their own, for --tool-parser-plugin and others."""

from pathlib import Path

_PLUGIN = """
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser


@ToolParserManager.register_module(NAME)
class MyToolParser(Hermes2ProToolParser):
    pass


@ReasoningParserManager.register_module(NAME)
class MyReasoningParser(DeepSeekR1ReasoningParser):
    pass
"""


def write_parser_plugin(path: Path, *, name: str) -> Path:
    """Write a module that registers a tool parser and a reasoning parser, both called `name`."""
    path.write_text(_PLUGIN.replace("NAME", repr(name)))
    return path
