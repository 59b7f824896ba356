"""Running the application under uvicorn, with vLLM's flags for it."""

import asyncio
import contextlib
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.config import SSL_PROTOCOL_VERSION, create_ssl_context
from vllm import envs
from vllm.entrypoints.launchers.utils.constants import H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT
from vllm.entrypoints.launchers.utils.server_utils import get_uvicorn_log_config
from vllm.entrypoints.launchers.utils.ssl import SSLCertRefresher

from shared_protocol.startup.bounded_http import BoundedH11, BoundedHttpTools
from shared_protocol.startup.connection_limits import ConnectionLimits
from shared_protocol.startup.server import DrainingServer

KEEP_ALIVE_S: Final = 75
"""How long an idle connection is kept, unless ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE`` says otherwise.

vLLM's own 5 s are those after which httpx, and so OpenAI's client, lets a connection go: where both
ends do it at one time, a request that is under way is lost. The time also begins when an answer has
been written, and a slow client has not read it yet.
"""


def keep_environment() -> None:
    """Have vLLM read its environment once more and then never; some of it is read for each token.

    Nothing is to set a variable of vLLM's after this.
    """
    envs.enable_envs_cache()


def make_server(
    app: FastAPI,
    args: Namespace,
    *,
    limits: ConnectionLimits,
    on_drain: Callable[[], None],
    grace_s: float,
    on_grace_over: Callable[[], None],
) -> DrainingServer:
    """Make the server that `args` describe, its certificates loaded."""
    log_config = get_uvicorn_log_config(args)
    # Left out, uvicorn has its own; None would be no log at all.
    options: dict[str, Any] = {} if log_config is None else {"log_config": log_config}
    config = uvicorn.Config(
        app,
        host=args.host,
        port=args.port,
        log_level=args.uvicorn_log_level,
        access_log=not args.disable_uvicorn_access_log,
        timeout_keep_alive=_keep_alive_s(),
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
        ssl_ciphers=args.ssl_ciphers,
        http=_http_parser(args, limits),  # type: ignore[arg-type]
        **options,
    )
    config.load()
    return DrainingServer(config, on_drain=on_drain, grace_s=grace_s, on_grace_over=on_grace_over)


def _keep_alive_s() -> int:
    if "VLLM_HTTP_TIMEOUT_KEEP_ALIVE" in os.environ:
        named: int = envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE
        return named
    return KEEP_ALIVE_S


def certificates_error(args: Namespace) -> str | None:
    """Say why the certificates that `args` name cannot be used; None if they can."""
    if not args.ssl_certfile:
        for name in ("ssl_keyfile", "enable_ssl_refresh"):
            if getattr(args, name):
                return f"--{name.replace('_', '-')} is of use with --ssl-certfile only"
        return None
    try:
        create_ssl_context(
            args.ssl_certfile,
            args.ssl_keyfile,
            None,
            SSL_PROTOCOL_VERSION,
            args.ssl_cert_reqs,
            args.ssl_ca_certs,
            args.ssl_ciphers,
        )
    except (OSError, ValueError) as error:
        return f"The certificates of --ssl-certfile cannot be used: {error}"
    return None


def _http_parser(args: Namespace, limits: ConnectionLimits) -> Callable[..., asyncio.Protocol]:
    """h11 where its own limit on a head is set, which then goes before that of `limits`."""
    max_head_bytes = args.h11_max_incomplete_event_size
    if max_head_bytes != H11_MAX_INCOMPLETE_EVENT_SIZE_DEFAULT:
        return partial(BoundedH11, limits=replace(limits, max_head_bytes=max_head_bytes))
    return partial(BoundedHttpTools, limits=limits)


@contextlib.contextmanager
def refreshed_certificates(server: DrainingServer, args: Namespace) -> Iterator[None]:
    """With ``--enable-ssl-refresh``, read certificates again when their files change."""
    config = server.config
    if not (args.enable_ssl_refresh and config.ssl):
        yield
        return
    refresher = SSLCertRefresher(
        ssl_context=config.ssl,
        key_path=config.ssl_keyfile,
        cert_path=config.ssl_certfile,
        ca_path=config.ssl_ca_certs,
    )
    try:
        yield
    finally:
        refresher.stop()
