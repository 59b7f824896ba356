"""A server of media that does what none should: it drips, lies, redirects and inflates."""

import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit


class WaywardServer:
    """
    Attributes:
        port: of this host's loopback addresses.
        files: by path; what is served as it should be.
        asked: every path that was asked for, with the Host it was asked of.
    """

    def __init__(self, port: int, files: dict[str, bytes]) -> None:
        self.port = port
        self.files = files
        self.asked: list[tuple[str, str]] = []

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@contextmanager
def wayward_server(files: dict[str, bytes]) -> Iterator[WaywardServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wayward.asked.append((self.headers["Host"], self.path))
            path = urlsplit(self.path).path
            with suppress(ConnectionError):
                if path in files:
                    self._answer(files[path], len(files[path]))
                else:
                    getattr(self, f"_{path.removeprefix('/')}")()

        def _answer(self, body: bytes, length: int | None, **headers: str) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def _to(self) -> None:
            (place,) = parse_qs(urlsplit(self.path).query)["url"]
            self.send_response(302)
            self.send_header("Location", place)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _round(self) -> None:
            self.send_response(302)
            self.send_header("Location", "/round")
            self.end_headers()

        def _drip(self) -> None:
            self._answer(b"", 10**6)
            for _ in range(1000):
                self.wfile.write(b".")
                time.sleep(0.02)

        def _silent(self) -> None:
            time.sleep(2)

        def _short(self) -> None:
            self._answer(b"too few", 1000)

        def _announced(self) -> None:
            self._answer(b"few", 10**12)

        def _endless(self) -> None:
            self._answer(b"", None)
            for _ in range(10_000):
                self.wfile.write(bytes(2**20))

        def _bomb(self) -> None:
            packed = gzip.compress(bytes(2**27), 1)
            self._answer(packed, len(packed), Content_Encoding="gzip")

        def _noise(self) -> None:
            self._answer(b"no gzip", 7, Content_Encoding="gzip")

        def _gone(self) -> None:
            self.send_error(404)

        def _broken(self) -> None:
            self.send_error(503)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        wayward = WaywardServer(server.server_port, files)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield wayward
        server.shutdown()
