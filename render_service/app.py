"""The render service's application: vLLM's, and what the two tiers add to it."""

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from vllm.entrypoints.scale_out.derender.api_router import router as derender_router

from render_service.body_limit import BodyLimit
from render_service.held_status import HeldStatus
from render_service.not_offered import not_offered_router
from render_service.remote_engine import RemoteEngine, ReplicasUnavailable
from render_service.replicas import ReplicaPool
from render_service.vllm_chat_route import chat_router, name_messages_in_errors
from render_service.vllm_render_routes import render_router
from render_service.vllm_stream_errors import report_errors_in_streams
from shared_protocol.errors import Unavailable
from shared_protocol.fault_boundary import FaultBoundary


def complete_app(
    app: FastAPI, engine: RemoteEngine, pool: ReplicaPool, *, max_body_bytes: int, version: str
) -> FastAPI:
    """Add readiness, the ``/render`` endpoints and the body limit to vLLM's application."""
    app.title, app.version = "Tandem render service", version
    # In front of vLLM's own routes of these paths.
    app.router.routes[:0] = not_offered_router().routes
    if getattr(app.state, "openai_serving_chat", None) is not None:
        name_messages_in_errors(app.state.online_renderer)
        report_errors_in_streams(app.state)
        app.router.routes[:0] = [
            *chat_router().routes,
            *render_router(app.state, engine).routes,
            *derender_router.routes,
        ]
    # vLLM has built the stack of middleware already; without it, it is built when first used.
    app.middleware_stack = None
    app.add_middleware(HeldStatus)
    app.add_middleware(FaultBoundary)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a request would be answered now: some replica is ready and agrees."""
        status = pool.status()
        return JSONResponse(status, status_code=200 if status["ready"] else 503)

    @app.exception_handler(ReplicasUnavailable)
    async def unavailable(request: Request, raised: ReplicasUnavailable) -> Response:
        error = Unavailable(str(raised), retry_after_s=raised.retry_after_s)
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers())

    return app
