"""The generate service's application: routes, lifespan, one handler for errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from generate_service.engine_holder import EngineHolder
from generate_service.held_items import HeldItems
from generate_service.metrics import GenerateMetrics, Refusals
from generate_service.routes import GenerateRoute
from generate_service.running_requests import RunningRequests
from generate_service.settings import GenerateSettings
from generate_service.tier_auth import TierAuth, tier_keys
from shared_protocol.errors import TandemError
from shared_protocol.fault_boundary import FaultBoundary
from shared_protocol.serving_info import INFO_PATH
from shared_protocol.startup.body_memory import BodyMemory


def create_app(
    engine: EngineHolder, requests: RunningRequests, settings: GenerateSettings, *, version: str
) -> FastAPI:
    """Build the application around an engine that starts with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine.running():
            yield

    app = FastAPI(title="Tandem generate service", version=version, lifespan=lifespan)
    memory = BodyMemory(most=settings.max_bodies_bytes, retry_after_s=settings.retry_after_s)
    held = HeldItems(settings.held_items_bytes)
    refusals = Refusals()
    route = GenerateRoute(
        engine.get,
        requests,
        memory,
        held,
        on_refusal=refusals.add,
        max_body_bytes=settings.max_body_bytes,
        trust_hashes=settings.item_hashes == "sent",
    )
    app.router.routes.append(Route("/inference/v1/generate", route, methods=["POST"]))
    app.add_middleware(TierAuth, keys=tier_keys(settings), on_refusal=refusals.add)
    app.add_middleware(FaultBoundary)
    _add_status_routes(app, engine, version)
    _add_metrics_route(app, GenerateMetrics(requests, memory, held, refusals).registry())
    _add_error_handlers(app)
    return app


def _add_status_routes(app: FastAPI, engine: EngineHolder, version: str) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the process is worth keeping: false once its engine has died."""
        return Response(status_code=503 if engine.dead else 200)

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        """Whether a request would be answered now."""
        engine.check_ready()
        return {"ready": True}

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        info = engine.get().info()
        return {
            "object": "list",
            "data": [
                {
                    "id": name,
                    "object": "model",
                    "owned_by": "vllm",
                    "root": info.model,
                    "max_model_len": info.max_model_len,
                }
                for name in info.served_model_names
            ],
        }

    @app.get(INFO_PATH)
    async def info() -> dict[str, Any]:
        """For the render tier: whether a request would be answered now, and what is served.

        Both at once, since each render process asks several times a second.
        """
        engine.check_ready()
        facts: dict[str, Any] = msgspec.to_builtins(engine.get().info())
        return facts


def _add_metrics_route(app: FastAPI, own: prometheus_client.CollectorRegistry) -> None:
    @app.get("/metrics")
    async def metrics() -> Response:
        """vLLM's metrics of the engine, and the service's own."""
        # In the loop, which changes what it reads.
        content = prometheus_client.generate_latest(own)
        content += await asyncio.to_thread(prometheus_client.generate_latest)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)


def _add_error_handlers(app: FastAPI) -> None:
    Handler = Callable[[Request, Any], Awaitable[Response]]  # noqa: N806

    async def tandem_error(request: Request, error: TandemError) -> Response:
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers())

    async def http_error(request: Request, error: HTTPException) -> Response:
        body = {
            "message": error.detail,
            "type": "NotFoundError" if error.status_code == 404 else "BadRequestError",
            "param": None,
            "code": error.status_code,
        }
        return JSONResponse({"error": body}, status_code=error.status_code, headers=error.headers)

    handlers: list[tuple[type[Exception], Handler]] = [
        (TandemError, tandem_error),
        (HTTPException, http_error),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
