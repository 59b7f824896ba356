"""The render service's application, in this process, on a replica that a test scripts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from msgspec.structs import replace

from render_service import vllm_frontend
from render_service.app import complete_app
from render_service.client_keys import client_keys
from render_service.replicas import ReplicaPool
from render_service.settings import parse_render_args
from render_service.transport import GenerateTransport, TransportSettings
from tests.render_service.fake_generate import INFO, NO_AUTHORITIES, FakeGenerate, eventually


@asynccontextmanager
async def scripted_pair(
    flags: Sequence[str], *, max_model_len: int, probe_s: float = 1.0
) -> AsyncIterator[tuple[FastAPI, FakeGenerate]]:
    """Build what ``python -m render_service`` with `flags` would serve; its replica agrees.

    Args:
        probe_s: between two probes, and for the answer to one.
    """
    with FakeGenerate() as replica:
        settings, args = parse_render_args([*flags, f"--generate-url={replica.url}"], {})
        info = replace(INFO, max_model_len=max_model_len)
        config = vllm_frontend.build_config(args, info)
        replica.info = vllm_frontend.own_info(args, config, info)
        async with (
            GenerateTransport(
                TransportSettings(probe_timeout_s=probe_s), ssl_context=NO_AUTHORITIES
            ) as transport,
            ReplicaPool(
                settings.generate_url,
                transport,
                expected=replica.info,
                probe_interval_s=probe_s,
                stall_s=settings.replica_stall_s,
            ) as pool,
        ):
            await eventually(pool.has_ready_replica)
            app, engine = await vllm_frontend.build_frontend(
                args, config, pool, replica.info, settings.wire
            )
            yield (
                complete_app(
                    app, engine, pool, settings, keys=client_keys(settings, args), version="0"
                ),
                replica,
            )
            engine.shutdown()
