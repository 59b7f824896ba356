"""The generate service around an engine, until a signal comes or there is no engine any more."""

import gc
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import uvicorn
import uvloop

from generate_service.app import create_app
from generate_service.certificates import tls_options
from generate_service.engine_holder import MAX_RESTARTS, EngineHolder, ServedEngine
from generate_service.running_requests import RunningRequests
from generate_service.settings import GenerateSettings
from shared_protocol.startup import service_log
from shared_protocol.startup.bounded_http import BoundedHttpTools
from shared_protocol.startup.connection_limits import ConnectionLimits
from shared_protocol.startup.server import DrainingServer

# A render service keeps idle connections for a shorter time, so that it is never this side that
# closes one just as a request goes out on it.
KEEP_ALIVE_S: Final = 75


def run(
    start_engine: Callable[[], Awaitable[ServedEngine]],
    settings: GenerateSettings,
    *,
    log_level: str,
) -> int:
    """Serve; return the exit status."""
    server, engine = make_server(start_engine, settings, log_level=log_level)
    uvloop.run(_serve(server, engine))
    # The interpreter's last collection goes through all that was imported, for seconds.
    gc.freeze()
    return 1 if engine.failed else 0


def make_server(
    start_engine: Callable[[], Awaitable[ServedEngine]],
    settings: GenerateSettings,
    *,
    log_level: str,
) -> tuple[DrainingServer, EngineHolder]:
    engine = EngineHolder(
        start_engine,
        max_restarts=MAX_RESTARTS if settings.on_engine_death == "restart" else 0,
        on_failure=lambda: server.stop_after_failure(),
        retry_after_s=settings.retry_after_s,
    )
    requests = RunningRequests(
        most=settings.max_concurrent_requests, retry_after_s=settings.retry_after_s
    )
    app = create_app(engine, requests, settings, version=service_log.own_version())
    limits = ConnectionLimits(
        read_s=settings.request_read_timeout_s, stall_s=settings.answer_stall_timeout_s
    )
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=partial(BoundedHttpTools, limits=limits),  # type: ignore[arg-type]
        log_level=log_level,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        **tls_options(settings),
    )
    server = DrainingServer(
        config,
        on_drain=engine.drain,
        grace_s=settings.shutdown_grace_s,
        on_grace_over=requests.end,
    )
    return server, engine


async def _serve(server: DrainingServer, engine: EngineHolder) -> None:
    await server.serve()
    if engine.starting:
        # In a thread, which would be waited for; its processes end with this one.
        os._exit(0)
