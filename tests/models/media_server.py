"""Servers of files for the URLs in requests: plain, with TLS, and with TLS that nobody trusts."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_HOST = "127.0.0.1"


@dataclass(frozen=True)
class MediaServer:
    """Below each address: a file by its name, `moved/NAME` leading there, `round` to itself, and
    `broken`, which fails.

    Attributes:
        http, https: addresses; `secured/NAME` below the plain one leads to the other.
        stranger: address with a certificate that is in nobody's store.
        certificate: file with the certificate of `https`, to be trusted.
    """

    http: str
    https: str
    stranger: str
    certificate: Path


@contextmanager
def media_server(folder: Path, files: Mapping[str, bytes]) -> Iterator[MediaServer]:
    """Serve `files`; keys and certificates go into `folder`."""
    with ExitStack() as stack:
        certificate, stranger = (_certificate(folder / f"{name}.pem") for name in ("own", "other"))
        https = stack.enter_context(_serving(files, certificate=certificate))
        yield MediaServer(
            stack.enter_context(_serving(files, secured=https)),
            https,
            stack.enter_context(_serving(files, certificate=stranger)),
            certificate,
        )


@contextmanager
def _serving(
    files: Mapping[str, bytes], *, certificate: Path | None = None, secured: str = ""
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, name = self.path.removeprefix("/").rpartition("/")
            if name == "round":
                self._redirect("/round")
            elif name == "broken":
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            elif name not in files:
                self.send_error(HTTPStatus.NOT_FOUND)
            elif kind == "moved":
                self._redirect(f"/{name}")
            elif kind == "secured":
                self._redirect(f"{secured}/{name}")
            else:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Length", str(len(files[name])))
                self.end_headers()
                self.wfile.write(files[name])

        def _redirect(self, to: str) -> None:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer((_HOST, 0), Handler) as server:
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"{scheme}://{_HOST}:{server.server_port}"
        server.shutdown()


def _certificate(path: Path) -> Path:
    """Write a certificate for this host, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, path.stem)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path
