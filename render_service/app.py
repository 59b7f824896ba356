"""The render service's application: vLLM's, and what the two tiers add to it."""

from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from vllm.entrypoints.scale_out.derender.api_router import router as derender_router
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from render_service.body_limit import BodyLimit
from render_service.concurrency_limit import ConcurrencyLimit
from render_service.generation_limit import GenerationLimit
from render_service.held_status import HeldStatus
from render_service.key_gate import KeyGate, KeyLimits
from render_service.metrics import (
    BODY_MEMORY,
    CONCURRENCY,
    KEY_LIMITS,
    NO_REPLICA,
    Refusals,
    RenderMetrics,
)
from render_service.not_offered import not_offered_router
from render_service.remote_engine import RemoteEngine, ReplicasUnavailable
from render_service.replicas import ReplicaPool
from render_service.settings import RenderSettings
from render_service.vllm_chat_route import chat_router, name_messages_in_errors
from render_service.vllm_metrics_route import metrics_router
from render_service.vllm_render_routes import render_router
from render_service.vllm_stream_errors import report_errors_in_streams
from shared_protocol.errors import Unavailable
from shared_protocol.fault_boundary import FaultBoundary
from shared_protocol.keys import KeyRing
from shared_protocol.startup.body_memory import BodyMemory

RETRY_AFTER_S: Final = 1
"""When a request that found no memory is worth another try."""


def complete_app(
    app: FastAPI,
    engine: RemoteEngine,
    pool: ReplicaPool,
    settings: RenderSettings,
    *,
    keys: KeyRing | None,
    version: str,
) -> FastAPI:
    """Add to vLLM's application readiness, metrics, the ``/render`` endpoints, keys and limits."""
    app.title, app.version = "Tandem render service", version
    memory = BodyMemory(most=settings.max_bodies_bytes, retry_after_s=RETRY_AFTER_S)
    refusals = Refusals()
    addresses = settings.ready_addresses == "on"
    metrics = RenderMetrics(pool, memory, refusals, addresses=addresses)
    # In front of vLLM's own routes of these paths.
    app.router.routes[:0] = [
        *not_offered_router().routes,
        *metrics_router(metrics.registry()).routes,
    ]
    if getattr(app.state, "openai_serving_chat", None) is not None:
        name_messages_in_errors(app.state.online_renderer)
        report_errors_in_streams(app.state)
        app.router.routes[:0] = [
            *chat_router().routes,
            *render_router(app.state, engine).routes,
            *derender_router.routes,
        ]
    _put_key_gate(app, settings, keys, refusals)
    app.add_middleware(HeldStatus, on_refusal=partial(refusals.add, NO_REPLICA))
    app.add_middleware(GenerationLimit, max_generations=settings.max_generations_per_request)
    app.add_middleware(FaultBoundary)
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        memory=memory,
        on_no_memory=partial(refusals.add, BODY_MEMORY),
    )
    app.add_middleware(
        ConcurrencyLimit,
        max_requests=settings.max_concurrent_requests,
        on_refusal=partial(refusals.add, CONCURRENCY),
    )

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a request would be answered now: some replica is ready and agrees."""
        status = pool.status(addresses=addresses)
        return JSONResponse(status, status_code=200 if status["ready"] else 503)

    @app.exception_handler(ReplicasUnavailable)
    async def unavailable(request: Request, raised: ReplicasUnavailable) -> Response:
        error = Unavailable(str(raised), retry_after_s=raised.retry_after_s)
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers())

    return app


def _put_key_gate(
    app: FastAPI, settings: RenderSettings, keys: KeyRing | None, refusals: Refusals
) -> None:
    """Put the gate where vLLM has its own, which knows neither files nor shares: outside of CORS.

    So the middleware that a user names with ``--middleware`` sees what is refused, as in vLLM.
    """
    stack = [entry for entry in app.user_middleware if entry.cls is not AuthenticationMiddleware]
    if keys is not None:
        limits = KeyLimits(
            max_requests=settings.max_requests_per_key,
            requests_per_minute=settings.requests_per_minute_per_key,
        )
        classes: list[Any] = [entry.cls for entry in stack]
        gate = Middleware(
            KeyGate, keys=keys, limits=limits, on_excess=partial(refusals.add, KEY_LIMITS)
        )
        stack.insert(classes.index(CORSMiddleware), gate)
    app.user_middleware = stack
