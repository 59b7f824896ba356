"""``GET /metrics``: vLLM's metrics of this process, and the render service's own."""

import asyncio

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from vllm.v1.metrics.prometheus import get_prometheus_registry


def metrics_router(own: CollectorRegistry) -> APIRouter:
    """Make the router, which has to come in front of vLLM's.

    vLLM's registry is asked for each time, as vLLM's own route does: where
    ``PROMETHEUS_MULTIPROC_DIR`` is set, it is one that reads files.
    """
    router = APIRouter()

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        # In the loop, whose pool it reads; vLLM's may read files.
        content = generate_latest(own)
        content += await asyncio.to_thread(lambda: generate_latest(get_prometheus_registry()))
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    return router
