"""Spans of requests for OpenTelemetry, from times that were taken; without its environment variables nothing is done.

A span's place in its trace travels between processes as the text of W3C's `traceparent`. Where
`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) is set, spans go there by OTLP over HTTP, as the
standard's other variables say (headers, sampler, resource); that needs the extra `otel`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable
from typing import Any

Timing = tuple[str, float, float]
"""What something is called, when it began and when it ended, in seconds of `time.monotonic`."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Span:
    """Something under way; `traceparent` makes others parts of it. This one is not recorded."""

    traceparent = ""

    def end(self, timings: Iterable[Timing] = (), *, error: str | None = None, **attributes: Any) -> None:
        """It is over, and had these parts. Once; later calls change nothing."""


class Tracing:
    """Where spans of this process go: nowhere."""

    def begin(self, name: str, traceparent: str | None) -> Span:
        """A span that begins now, part of another one where that is said."""
        return _NO_SPAN


_NO_SPAN = Span()


class _RecordedSpan(Span):
    def __init__(self, tracing: _RecordedTracing, name: str, traceparent: str | None) -> None:
        self._tracing = tracing
        self._span = tracing.start(name, traceparent, time.monotonic())
        self.traceparent = tracing.place_of(self._span)

    def end(self, timings: Iterable[Timing] = (), *, error: str | None = None, **attributes: Any) -> None:
        if not self._span.is_recording():
            return
        for name, began, ended in timings:
            part = self._tracing.start(name, self.traceparent, began)
            part.end(self._tracing.wall_ns(ended))
        self._span.set_attributes({f"turnstile.{name}": value for name, value in attributes.items()})
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(self._tracing.wall_ns(time.monotonic()))


class _RecordedTracing(Tracing):
    """Spans of one tier, exported by a thread of the SDK."""

    def __init__(self, tier: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise RuntimeError(f"{_ENDPOINTS[1]} is set: traces need Turnstile's extra `otel`") from error
        if (protocol := _first_set(_PROTOCOLS)) not in (None, "http/protobuf"):
            raise ValueError(f"{_PROTOCOLS[1]}: traces are sent by http/protobuf alone, not by {protocol}")
        name = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "turnstile"), "turnstile.tier": tier}
        provider = TracerProvider(resource=Resource.create(name))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = provider.get_tracer("turnstile")
        self._propagator = TraceContextTextMapPropagator()
        self._monotonic_began_ns = time.time_ns() - time.monotonic_ns()

    def begin(self, name: str, traceparent: str | None) -> Span:
        return _RecordedSpan(self, name, traceparent)

    def start(self, name: str, traceparent: str | None, began: float) -> Any:
        """The SDK's span; what is no `traceparent` begins a trace."""
        context = self._propagator.extract({"traceparent": traceparent} if traceparent else {})
        return self._tracer.start_span(name, context, start_time=self.wall_ns(began))

    def place_of(self, span: Any) -> str:
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier.get("traceparent", "")

    def wall_ns(self, monotonic: float) -> int:
        """Nanoseconds since 1970 of a time of this process."""
        return self._monotonic_began_ns + int(monotonic * 1e9)


@functools.cache
def tracing(tier: str) -> Tracing:
    """That of this process, as its environment says. Raises where that asks for what cannot be done."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    return Tracing() if off or _first_set(_ENDPOINTS) is None else _RecordedTracing(tier)


def _first_set(variables: Iterable[str]) -> str | None:
    return next((value for variable in variables if (value := os.environ.get(variable))), None)
