"""A collector of OpenTelemetry spans (OTLP over HTTP), which keeps what it is sent."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_WAIT_S = 30.0


@dataclass(frozen=True)
class Span:
    """
    Attributes:
        trace_id, parent_id: in hexadecimal, as `traceparent` has them; empty if there is none.
    """

    name: str
    trace_id: str
    parent_id: str
    trace_state: str
    attributes: dict[str, Any]


class TraceCollector:
    """Listens while it is a context; `environment` makes a server of vLLM export to it."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self.environment = {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "100",  # ms
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, wanted: Callable[[Span], bool]) -> Span:
        """Return the first span that is wanted, once it has come."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            for span in list(self._spans):
                if wanted(span):
                    return span
            time.sleep(0.05)
        raise AssertionError(f"no such span among {[span.name for span in self._spans]}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                spans.extend(_spans_of(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        return Handler


def _spans_of(body: bytes) -> list[Span]:
    export = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            parent_id=span.parent_span_id.hex(),
            trace_state=span.trace_state,
            attributes={item.key: _value(item.value) for item in span.attributes},
        )
        for resource in export.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
