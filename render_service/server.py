"""Running the application under uvicorn, with vLLM's flags for it."""

from argparse import Namespace
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from vllm import envs

from shared_protocol.startup.server import DrainingServer


def make_server(app: FastAPI, args: Namespace, *, on_drain: Callable[[], None]) -> DrainingServer:
    return DrainingServer(
        uvicorn.Config(
            app,
            host=args.host,
            port=args.port,
            log_level=args.uvicorn_log_level,
            access_log=not args.disable_uvicorn_access_log,
            timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
            ssl_keyfile=args.ssl_keyfile,
            ssl_certfile=args.ssl_certfile,
            ssl_ca_certs=args.ssl_ca_certs,
            ssl_cert_reqs=args.ssl_cert_reqs,
        ),
        on_drain=on_drain,
    )
