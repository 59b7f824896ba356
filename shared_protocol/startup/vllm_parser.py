"""vLLM's own command line, loaded when it is needed."""

from shared_protocol.startup.command_line import VllmCommandLine


def load_vllm(program: str) -> VllmCommandLine:
    """Import vLLM, which takes seconds, and return its server's parser."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog=program, allow_abbrev=False)
    return VllmCommandLine(make_arg_parser(parser), validate_parsed_serve_args)
