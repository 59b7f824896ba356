"""``python -m render_service``: vLLM's front end on remote replicas."""

import logging
import os
import sys
from argparse import Namespace

from render_service.settings import RenderSettings, parse_render_args
from shared_protocol.startup import service_log, vllm_cpu, vllm_version
from shared_protocol.startup.server import end_on_signals
from shared_protocol.startup.start_checks import start_error

logger = logging.getLogger("render_service")


def main() -> None:
    end_on_signals()
    vllm_cpu.prepare_environment()
    service_log.set_up_log()
    vllm_version.warn_of_another_version()
    settings, args = parse_render_args(sys.argv[1:], os.environ)
    sys.exit(serve(settings, args))


def serve(settings: RenderSettings, args: Namespace) -> int:
    """Serve until a signal comes; return the exit status."""
    unusable = start_error(model=args.model, host=settings.host, port=settings.port)
    if unusable is not None:
        logger.error("%s", unusable)
        return 2
    # Here, because they import vLLM: a wrong flag is reported before that.
    from vllm.logger import configure_logging_from_args

    from render_service.service import run, settings_error

    service_log.set_level(configure_logging_from_args(args).log_level)
    if (unusable := settings_error(settings, args)) is not None:
        logger.error("%s", unusable)
        return 2
    return run(settings, args)


if __name__ == "__main__":
    main()
