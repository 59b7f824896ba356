"""``python -m render_service``: vLLM's front end on remote replicas."""

import logging
import os
import sys
from argparse import Namespace

import uvloop

from render_service.settings import RenderSettings, parse_render_args
from shared_protocol.startup import service_log, vllm_cpu, vllm_version
from shared_protocol.startup.connection_limits import ConnectionLimits
from shared_protocol.startup.server import end_on_signals

logger = logging.getLogger("render_service")


def main() -> None:
    end_on_signals()
    vllm_cpu.prepare_environment()
    service_log.set_up_log()
    vllm_version.warn_of_another_version()
    settings, args = parse_render_args(sys.argv[1:], os.environ)
    sys.exit(uvloop.run(serve(settings, args)))


async def serve(settings: RenderSettings, args: Namespace) -> int:
    """Wait for a replica, build vLLM's front end for what it serves, and serve until a signal.

    Returns:
        The exit status.
    """
    # Here, because they import vLLM: a wrong flag is reported before that.
    from vllm.logger import configure_logging_from_args

    from render_service import vllm_frontend, vllm_media_connector
    from render_service.app import complete_app
    from render_service.client_keys import client_keys, keys_error
    from render_service.media_rules import media_rules
    from render_service.replicas import ReplicaPool
    from render_service.tier_credentials import credentials_error, sent_credential, tls_context
    from render_service.transport import GenerateTransport, TransportSettings
    from render_service.vllm_server import certificates_error, make_server, refreshed_certificates

    service_log.set_level(configure_logging_from_args(args).log_level)
    for unusable in (
        certificates_error(args),
        keys_error(settings, args),
        credentials_error(settings),
    ):
        if unusable is not None:
            logger.error("%s", unusable)
            return 2
    transport_settings = TransportSettings(
        connect_timeout_s=settings.connect_timeout_s,
        probe_timeout_s=settings.probe_timeout_s,
        # Twice the time in which a silent replica is found out.
        continue_timeout_s=2 * (settings.probe_interval_s + settings.probe_timeout_s),
    )
    async with (
        GenerateTransport(
            transport_settings,
            ssl_context=tls_context(settings),
            credential=sent_credential(settings),
        ) as transport,
        ReplicaPool(
            settings.generate_url,
            transport,
            probe_interval_s=settings.probe_interval_s,
            stall_s=settings.replica_stall_s,
        ) as pool,
    ):
        try:
            replica = await pool.wait_for_first(settings.startup_timeout_s)
        except TimeoutError as error:
            logger.error("%s", error)
            return 1
        media_sessions = vllm_media_connector.install(media_rules(settings))
        config = vllm_frontend.build_config(args, replica)
        pool.expect(vllm_frontend.own_info(args, config, replica))
        app, engine = await vllm_frontend.build_frontend(args, config, pool, replica, settings.wire)
        complete_app(
            app,
            engine,
            pool,
            settings,
            keys=client_keys(settings, args),
            version=service_log.own_version(),
        )
        limits = ConnectionLimits(
            read_s=settings.request_read_timeout_s,
            stall_s=settings.response_write_timeout_s,
            max_head_bytes=settings.max_head_bytes,
        )
        server = make_server(
            app,
            args,
            limits=limits,
            on_drain=pool.drain,
            grace_s=settings.shutdown_grace_s,
            on_grace_over=pool.end_requests,
        )
        app.state.server = server
        with refreshed_certificates(server, args):
            await server.serve()
        engine.shutdown()
        await media_sessions.close()
    return 0


if __name__ == "__main__":
    main()
