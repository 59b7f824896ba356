"""``python -m generate_service``: starts vLLM's engine and serves it."""

import os
import sys
from argparse import Namespace
from typing import Final

import uvicorn

from generate_service import vllm_clean_blocks
from generate_service.settings import GenerateSettings, parse_generate_args
from generate_service.vllm_plugin import SERVED_VARIABLE
from shared_protocol.startup import service_log, vllm_cpu, vllm_version
from shared_protocol.startup.server import DrainingServer

# A render service keeps idle connections for a shorter time, so that it is never this side that
# closes one just as a request goes out on it.
KEEP_ALIVE_S: Final = 75


def main() -> None:
    vllm_cpu.prepare_environment()
    os.environ[SERVED_VARIABLE] = "1"
    # As `vllm serve` has it: what is forked from a process with threads may hang.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    service_log.set_up_log()
    vllm_version.warn_of_another_version()
    settings, args = parse_generate_args(sys.argv[1:], os.environ)
    sys.exit(serve(settings, args))


def serve(settings: GenerateSettings, args: Namespace) -> int:
    """Serve until a signal comes or the engine fails; return the exit status."""
    os.environ[vllm_clean_blocks.VARIABLE] = settings.zero_kv_blocks
    # Here, because they import vLLM: a wrong flag is reported before that.
    from vllm.logger import configure_logging_from_args

    from generate_service.app import create_app
    from generate_service.engine_holder import EngineHolder
    from generate_service.vllm_engine import Engine

    service_log.set_level(configure_logging_from_args(args).log_level)

    engine = EngineHolder(
        lambda: Engine.start(args, compare_items=settings.item_checks == "on"),
        on_failure=lambda: server.stop_after_failure(),
        retry_after_s=settings.retry_after_s,
    )
    app = create_app(engine, settings, version=service_log.own_version())
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=args.uvicorn_log_level,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = DrainingServer(config, on_drain=engine.drain)
    server.run()
    return 1 if engine.failed else 0


# The engine's processes are spawned, and import this module again.
if __name__ == "__main__":
    main()
