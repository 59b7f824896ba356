"""``python -m generate_service``: starts vLLM's engine and serves it."""

import logging
import os
import sys
from argparse import Namespace

from generate_service import vllm_clean_blocks
from generate_service.certificates import certificates_error
from generate_service.settings import GenerateSettings, parse_generate_args
from generate_service.tier_auth import tier_keys_error
from generate_service.vllm_plugin import SERVED_VARIABLE
from shared_protocol.startup import service_log, vllm_cpu, vllm_version
from shared_protocol.startup.body_memory import body_memory_error
from shared_protocol.startup.server import end_on_signals
from shared_protocol.startup.start_checks import start_error

logger = logging.getLogger("generate_service")


def main() -> None:
    end_on_signals()
    vllm_cpu.prepare_environment()
    os.environ[SERVED_VARIABLE] = "1"
    # As `vllm serve` has it: what is forked from a process with threads may hang.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # Of the plug-in in workers that Ray starts; vLLM hands on variables of its own and these.
    copied = os.environ.get("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "")
    names = [SERVED_VARIABLE, vllm_clean_blocks.VARIABLE]
    os.environ["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] = ",".join([*filter(None, [copied]), *names])
    service_log.set_up_log()
    vllm_version.warn_of_another_version()
    settings, args = parse_generate_args(sys.argv[1:], os.environ)
    sys.exit(serve(settings, args))


def serve(settings: GenerateSettings, args: Namespace) -> int:
    """Serve until a signal comes or the engine fails; return the exit status."""
    unusable = (
        certificates_error(settings)
        or tier_keys_error(settings)
        or body_memory_error(
            max_body_bytes=settings.max_body_bytes, max_bodies_bytes=settings.max_bodies_bytes
        )
        or start_error(model=args.model, host=settings.host, port=settings.port)
    )
    if unusable is not None:
        logger.error("%s", unusable)
        return 2
    os.environ[vllm_clean_blocks.VARIABLE] = settings.zero_kv_blocks
    # Here, because they import vLLM: a wrong flag is reported before that.
    from vllm.logger import configure_logging_from_args
    from vllm.utils.system_utils import set_ulimit

    from generate_service.service import run
    from generate_service.vllm_engine import Engine

    service_log.set_level(configure_logging_from_args(args).log_level)
    # Of open files: each request is a connection, and shells often allow 1024.
    set_ulimit()
    return run(
        lambda: Engine.start(args, compare_items=settings.item_checks == "on"),
        settings,
        log_level=args.uvicorn_log_level,
    )


if __name__ == "__main__":
    main()
