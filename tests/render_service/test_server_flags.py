"""vLLM's flags for the HTTP server, on the server that the render service runs."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from fastapi import FastAPI

from render_service.settings import parse_render_args
from render_service.vllm_server import certificates_error, make_server, refreshed_certificates
from shared_protocol.startup.connection_limits import ConnectionLimits
from tests.certificates import Authority
from tests.processes import free_port


def parsed(*flags: str) -> Namespace:
    required = ("--model=m", "--generate-url=http://generate:8100", "--host=127.0.0.1")
    _, args = parse_render_args([*required, f"--port={free_port()}", *flags], {})
    return args


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[int]:
    """Serve an empty application with `flags`; yields the port."""
    args = parsed(*flags)
    app = FastAPI()

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    server = make_server(
        app,
        args,
        limits=ConnectionLimits(read_s=120.0, stall_s=60.0),
        on_drain=lambda: None,
        grace_s=25.0,
        on_grace_over=lambda: None,
    )

    async def run() -> None:
        with refreshed_certificates(server, args):
            await server.serve()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield args.port
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_flags(authority: Authority) -> list[str]:
    server = authority.certify("server")
    return [f"--ssl-certfile={server.certificate}", f"--ssl-keyfile={server.key}"]


def client_of(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


def get(port: int, context: ssl.SSLContext, **options: Any) -> httpx.Response:
    return httpx.get(f"https://127.0.0.1:{port}/hello", verify=context, trust_env=False, **options)


def serial_served(port: int, context: ssl.SSLContext) -> int:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


def test_tls(authority: Authority, tls_flags: list[str]) -> None:
    with serving(*tls_flags) as port:
        assert get(port, client_of(authority)).json() == "hello"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/hello", trust_env=False)


def test_a_client_has_to_show_a_certificate(authority: Authority, tls_flags: list[str]) -> None:
    required = [f"--ssl-ca-certs={authority.certificate}", f"--ssl-cert-reqs={ssl.CERT_REQUIRED}"]
    with serving(*tls_flags, *required) as port:
        stranger = client_of(authority)
        with pytest.raises(httpx.TransportError):
            get(port, stranger)
        known = client_of(authority)
        client = authority.certify("client")
        known.load_cert_chain(client.certificate, client.key)
        assert get(port, known).status_code == 200


def test_ciphers(authority: Authority, tls_flags: list[str]) -> None:
    cipher = "ECDHE-ECDSA-AES256-GCM-SHA384"
    with serving(*tls_flags, f"--ssl-ciphers={cipher}") as port:
        context = client_of(authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert get(port, context).status_code == 200
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        with pytest.raises(httpx.ConnectError):
            get(port, context)


@pytest.mark.parametrize("refreshed", [True, False])
def test_certificates_are_read_again(tmp_path: Path, refreshed: bool) -> None:
    authority = Authority(tmp_path)
    first = authority.certify("server")
    flags = [f"--ssl-certfile={first.certificate}", f"--ssl-keyfile={first.key}"]
    with serving(*flags, *["--enable-ssl-refresh"] * refreshed) as port:
        context = client_of(authority)
        assert serial_served(port, context) == first.serial
        second = authority.certify("server")
        seen = first.serial
        for _ in range(50 if refreshed else 10):
            if (seen := serial_served(port, context)) == second.serial:
                break
            threading.Event().wait(0.1)
        assert seen == (second.serial if refreshed else first.serial)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ssl-keyfile=server.key"], "--ssl-keyfile is of use with --ssl-certfile only"),
        (["--ssl-certfile=missing.pem"], "No such file or directory"),
        (["--enable-ssl-refresh"], "--enable-ssl-refresh is of use with --ssl-certfile only"),
    ],
)
def test_certificates_that_cannot_be_used(flags: list[str], expected: str) -> None:
    assert expected in str(certificates_error(parsed(*flags)))


def test_certificates_that_can(tls_flags: list[str]) -> None:
    assert certificates_error(parsed()) is None
    assert certificates_error(parsed(*tls_flags, "--enable-ssl-refresh")) is None


@pytest.mark.parametrize("seconds", [None, "1"])
def test_a_connection_is_kept_for_longer_than_by_clients(
    seconds: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx, and so OpenAI's client, keeps one for 5 s; and a slow client begins later."""
    if seconds is not None:
        monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", seconds)
    request = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving() as port, socket.create_connection(("127.0.0.1", port), timeout=5.0) as client:
        client.sendall(request)
        time.sleep(2.0 if seconds else 6.0)
        assert client.recv(10_000).endswith(b'"hello"')
        if seconds is None:
            client.sendall(request)
            assert client.recv(10_000).endswith(b'"hello"')
        else:
            assert client.recv(10_000) == b""


def test_the_size_of_a_head_is_limited() -> None:
    with serving("--h11-max-incomplete-event-size=2000") as port:
        url = f"http://127.0.0.1:{port}/hello"
        answer = httpx.get(url, headers={"x-much": "x" * 1000}, trust_env=False)
        assert answer.status_code == 200
        with socket.create_connection(("127.0.0.1", port)) as client:
            # Without its end, which h11 does not miss where it comes with the same read.
            client.sendall(b"GET /hello HTTP/1.1\r\nHost: test\r\nx-much: " + b"x" * 2000)
            assert client.recv(1000).startswith(b"HTTP/1.1 431")


def test_the_access_log(capfd: pytest.CaptureFixture[str]) -> None:
    def log_of(*flags: str) -> str:
        with serving(*flags) as port:
            for path in ("hello", "absent"):
                httpx.get(f"http://127.0.0.1:{port}/{path}", trust_env=False)
        out, err = capfd.readouterr()
        return out + err

    both = log_of()
    assert '"GET /hello HTTP/1.1" 200' in both
    assert '"GET /absent HTTP/1.1" 404' in both
    one = log_of("--disable-access-log-for-endpoints=/hello,/ready")
    assert '"GET /hello' not in one
    assert '"GET /absent HTTP/1.1" 404' in one
    assert "GET" not in log_of("--disable-uvicorn-access-log")
    assert "GET" not in log_of("--uvicorn-log-level=warning")


def test_the_log_of_a_configuration_file(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    file = tmp_path / "logging.json"
    handler = {"class": "logging.FileHandler", "filename": str(log)}
    access = {"handlers": ["access"], "level": "INFO", "propagate": False}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"access": handler},
        "loggers": {"uvicorn.access": access},
    }
    file.write_text(json.dumps(config))
    with serving(f"--logging-config.pylogging_config_file={file}") as port:
        httpx.get(f"http://127.0.0.1:{port}/hello", trust_env=False)
    for opened in logging.getLogger("uvicorn.access").handlers:
        opened.close()
    assert '"GET /hello HTTP/1.1" 200' in log.read_text()
