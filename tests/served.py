"""An application on a real socket, in the event loop of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


@asynccontextmanager
async def served(config: uvicorn.Config) -> AsyncIterator[None]:
    """Listening inside the context; connections that are left are not waited for."""
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await task
        # uvloop closes sockets in a later turn.
        await asyncio.sleep(0.01)
