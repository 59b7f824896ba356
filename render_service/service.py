"""vLLM's front end on remote replicas, from the first that is ready to the last request."""

import logging
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop
from fastapi import FastAPI

from render_service import vllm_frontend, vllm_media_connector
from render_service.app import complete_app
from render_service.client_keys import client_keys, keys_error
from render_service.media_rules import media_rules
from render_service.replicas import LATE_S, ReplicaPool
from render_service.settings import RenderSettings
from render_service.tier_credentials import credentials_error, sent_credential, tls_context
from render_service.transport import GenerateTransport, TransportSettings
from render_service.vllm_decoded_images import DecodedImages
from render_service.vllm_server import (
    certificates_error,
    keep_environment,
    make_server,
    refreshed_certificates,
)
from shared_protocol.serving_info import ServingInfo
from shared_protocol.startup import service_log
from shared_protocol.startup.body_memory import body_memory_error
from shared_protocol.startup.connection_limits import ConnectionLimits
from shared_protocol.startup.server import DrainingServer

logger = logging.getLogger(__name__)


def settings_error(settings: RenderSettings, args: Namespace) -> str | None:
    """Say why the settings make no sense together, or their files cannot be used."""
    return (
        certificates_error(args)
        or keys_error(settings, args)
        or credentials_error(settings)
        or body_memory_error(
            max_body_bytes=settings.max_body_bytes, max_bodies_bytes=settings.max_bodies_bytes
        )
    )


def run(settings: RenderSettings, args: Namespace) -> int:
    """Serve; return the exit status."""
    status: int = uvloop.run(_serve(settings, args))
    return status


async def _serve(settings: RenderSettings, args: Namespace) -> int:
    async with make_transport(settings) as transport, make_pool(settings, transport) as pool:
        try:
            replica = await pool.wait_for_first(settings.startup_timeout_s)
        except TimeoutError as error:
            logger.error("%s", error)
            return 1
        async with _application(settings, args, pool, replica) as app:
            server = _server(app, settings, args, pool)
            app.state.server = server
            keep_environment()
            with refreshed_certificates(server, args):
                await server.serve()
    return 0


def make_transport(settings: RenderSettings) -> GenerateTransport:
    timeouts = TransportSettings(
        connect_timeout_s=settings.connect_timeout_s,
        send_timeout_s=settings.send_timeout_s,
        probe_timeout_s=settings.probe_timeout_s,
        # Longer than one that is silent is asked.
        continue_timeout_s=2 * (settings.probe_interval_s + settings.probe_timeout_s) + LATE_S,
    )
    return GenerateTransport(
        timeouts, ssl_context=tls_context(settings), credential=sent_credential(settings)
    )


def make_pool(settings: RenderSettings, transport: GenerateTransport) -> ReplicaPool:
    return ReplicaPool(
        settings.generate_url,
        transport,
        probe_interval_s=settings.probe_interval_s,
        stall_s=settings.replica_stall_s,
    )


@asynccontextmanager
async def _application(
    settings: RenderSettings, args: Namespace, pool: ReplicaPool, replica: ServingInfo
) -> AsyncIterator[FastAPI]:
    """Build it for what `replica` serves; what it holds is given back at the end."""
    media_sessions = vllm_media_connector.install(
        media_rules(settings), DecodedImages(settings.decoded_images_bytes)
    )
    config = vllm_frontend.build_config(args, replica)
    pool.expect(vllm_frontend.own_info(args, config, replica))
    app, engine = await vllm_frontend.build_frontend(args, config, pool, replica, settings.wire)
    keys = client_keys(settings, args)
    complete_app(app, engine, pool, settings, keys=keys, version=service_log.own_version())
    try:
        yield app
    finally:
        engine.shutdown()
        await media_sessions.close()


def _server(
    app: FastAPI, settings: RenderSettings, args: Namespace, pool: ReplicaPool
) -> DrainingServer:
    limits = ConnectionLimits(
        read_s=settings.request_read_timeout_s,
        stall_s=settings.response_write_timeout_s,
        max_head_bytes=settings.max_head_bytes,
    )
    return make_server(
        app,
        args,
        limits=limits,
        on_drain=pool.drain,
        grace_s=settings.shutdown_grace_s,
        on_grace_over=pool.end_requests,
    )
