"""Running the application under uvicorn."""

import uvicorn
from fastapi import FastAPI

# A render service keeps idle connections for a shorter time, so that it is never this side that
# closes one just as a request goes out on it.
KEEP_ALIVE_S = 75


def make_server(app: FastAPI, *, host: str, port: int, log_level: str) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level=log_level,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
