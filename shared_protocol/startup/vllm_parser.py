"""vLLM's own command line, loaded when it is needed."""

from argparse import Namespace

from shared_protocol.startup.command_line import VllmCommandLine
from shared_protocol.startup.declared_settings import variable


def load_vllm(program: str) -> VllmCommandLine:
    """Import vLLM, which takes seconds, and return its server's parser."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog=program, allow_abbrev=False)
    return VllmCommandLine(make_arg_parser(parser), _validate)


def _validate(args: Namespace) -> None:
    """Check as `vllm serve` does before it builds anything; loads the plugins that it would."""
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    validate_parsed_serve_args(args)
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    if args.enable_auto_tool_choice:
        _check_name("tool-call-parser", args.tool_call_parser, ToolParserManager.list_registered())
    reasoning = args.reasoning_parser or args.structured_outputs_config.reasoning_parser
    if reasoning:
        _check_name("reasoning-parser", reasoning, ReasoningParserManager.list_registered())


def _check_name(flag: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(
            f"--{flag} ({variable(flag)}): {name!r} is not one of {', '.join(sorted(known))}"
        )
