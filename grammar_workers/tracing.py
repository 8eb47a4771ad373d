"""OpenTelemetry spans of requests. The steps of a request become child spans, from their recorded times, when it ends.

If `OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) is set, spans are sent to that URL by OTLP
over HTTP. This requires the extra `otel`. Otherwise nothing is recorded. The other environment variables of
OpenTelemetry apply (headers, sampler, resource). Processes send each other the position in a trace in the `traceparent`
format of W3C.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable
from typing import Any

# Name, begin and end of a step, in seconds of `time.monotonic`.
Timing = tuple[str, float, float]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Span:
    """One timed operation in a trace, from its creation to the call of `end`. This base class records nothing.

    Attributes:
        traceparent: Position of the span in its trace, in the format of W3C Trace Context. Other spans use it as their
            parent. Empty if nothing is recorded.
    """

    traceparent = ""

    def end(self, timings: Iterable[Timing] = (), *, error: str | None = None, **attributes: Any) -> None:
        """End the span. Later calls have no effect.

        Args:
            timings: Steps of the operation: triples (name, begin, end), in seconds of `time.monotonic`. Each step
                becomes a child span of this span.
            error: Description of the failure. None: the operation succeeded.
            attributes: Attributes of the span, exported with the prefix `turnstile.`.
        """


class Tracing:
    """Factory of spans (traced operations) for one process. This base class records nothing."""

    def begin(self, name: str, traceparent: str | None) -> Span:
        """Return a span that begins now. The caller must call its `end`.

        Args:
            name: Name of the span.
            traceparent: Position of the parent span, in the format of W3C Trace Context. None or empty: the span begins
                a new trace.
        """
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
    """Spans of one deployment, which a thread of the SDK exports."""

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
        """Return a span of the SDK. It begins a trace if `traceparent` is not valid."""
        context = self._propagator.extract({"traceparent": traceparent} if traceparent else {})
        return self._tracer.start_span(name, context, start_time=self.wall_ns(began))

    def place_of(self, span: Any) -> str:
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier.get("traceparent", "")

    def wall_ns(self, monotonic: float) -> int:
        """Return a time of this process's monotonic clock as nanoseconds since 1970."""
        return self._monotonic_began_ns + int(monotonic * 1e9)


@functools.cache
def tracing(tier: str) -> Tracing:
    """Return the factory of spans for a deployment. Each process creates one factory per deployment.

    The factory records spans only if the environment has the URL of an OTLP endpoint and does not disable tracing. If
    it records spans, two errors are possible: RuntimeError if the extra `otel` is not installed, and ValueError if the
    environment selects a protocol other than `http/protobuf`.

    Args:
        tier: Name of the deployment, such as "Router". All spans have it as the attribute `turnstile.tier`.
    """
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    return Tracing() if off or _first_set(_ENDPOINTS) is None else _RecordedTracing(tier)


def _first_set(variables: Iterable[str]) -> str | None:
    return next((value for variable in variables if (value := os.environ.get(variable))), None)
