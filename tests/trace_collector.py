"""A collector of traces: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

DEADLINE_S = 120.0


@dataclasses.dataclass(frozen=True)
class CollectedSpan:
    """Ids in hexadecimal; `parent` is empty for the root of a trace. Times in seconds since 1970."""

    trace: str
    id: str
    parent: str
    name: str
    tier: str
    began: float
    ended: float
    is_error: bool
    attributes: dict[str, str]


class Collector:
    """Listens at `url` while it is entered; `spans` has what came."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self, names: set[str]) -> list[CollectedSpan]:
        """The spans, once each of these names has come; raises TimeoutError where they do not."""
        self._until(lambda: names <= {span.name for span in self.spans})
        return list(self.spans)

    def wait_for(self, trace: str, spans: int) -> None:
        """Returns once a trace has so many spans; raises TimeoutError where it never does."""
        self._until(lambda: sum(span.trace == trace for span in self.spans) >= spans)

    def _until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {sorted((span.tier, span.name) for span in self.spans)} came")
            time.sleep(0.02)


def _spans(request: ExportTraceServiceRequest) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            name=span.name,
            tier=next((a.value.string_value for a in resource.resource.attributes if a.key == "turnstile.tier"), ""),
            began=span.start_time_unix_nano / 1e9,
            ended=span.end_time_unix_nano / 1e9,
            is_error=span.status.code == 2,
            attributes={a.key: a.value.string_value or str(a.value.int_value) for a in span.attributes},
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
