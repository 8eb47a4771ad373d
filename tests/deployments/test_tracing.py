"""Traces of requests, seen by a collector in this process; nothing at all without the environment variables."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from deployments.routing.service import tracing as router_tracing
from grammar_workers.tracing import Span, Tracing, tracing
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.trace_collector import Collector

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = f"00-{TRACE}-{PARENT}-01"
BODY = {"prompt": "x", "structured_outputs": {"regex": "[0-9]+"}, "max_tokens": 5}


@pytest.mark.anyio
async def test_a_request_is_a_part_of_its_clients_trace(
    collector: Collector, http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    assert (await http.post("/v1/completions", json=BODY, headers={"traceparent": SENT})).status_code == 200
    spans = {span.name: span for span in collector.wait({"request", "turn", "first event"})}
    root = spans["request"]
    assert (root.trace, root.parent, root.tier, root.is_error) == (TRACE, PARENT, "router", False)
    for name in ("turn", "first event"):
        assert (spans[name].trace, spans[name].parent) == (TRACE, root.id)
        assert root.began <= spans[name].began <= spans[name].ended <= root.ended
    passed_on = f"00-{TRACE}-{root.id}-01"
    assert compiler.traceparents == [passed_on] and replica.requests[0]["traceparent"] == passed_on


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [None, "", "00-zz", f"00-{'0' * 32}-{PARENT}-01", "x" * 5000])
async def test_without_a_trace_of_the_client_one_begins(
    collector: Collector, http: httpx.AsyncClient, sent: str | None
) -> None:
    headers = {} if sent is None else {"traceparent": sent}
    assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    root = next(span for span in collector.wait({"request"}) if span.name == "request")
    assert root.parent == "" and root.trace not in (TRACE, "0" * 32)


@pytest.mark.anyio
async def test_a_client_that_does_not_sample_is_not_recorded(
    collector: Collector, http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    await http.post("/v1/completions", json=BODY, headers={"traceparent": SENT[:-1] + "0"})
    await http.post("/v1/completions", json=BODY, headers={"traceparent": SENT})
    assert replica.requests[0]["traceparent"].endswith("-00")
    assert len([span for span in collector.wait({"request"}) if span.name == "request"]) == 1


@pytest.mark.anyio
async def test_a_refusal_is_an_error_of_its_span(
    collector: Collector, http: httpx.AsyncClient, compiler: FakeCompiler
) -> None:
    compiler.answers = [{"status": "refused", "error": {"code": "unsupported", "message": "no"}}]
    assert (await http.post("/v1/completions", json=BODY)).status_code == 400
    root = next(span for span in collector.wait({"request"}) if span.name == "request")
    assert root.is_error and root.attributes["turnstile.status"] == "400"


def test_spans_have_the_times_that_were_taken(collector: Collector) -> None:
    span = tracing("compiler").begin("grammar", SENT)
    span.end([("compile", 10.0, 10.25)], key="abc")
    span.end([("twice", 0.0, 1.0)], error="too late")
    found = {span.name: span for span in collector.wait({"grammar", "compile"})}
    assert set(found) == {"grammar", "compile"} and not found["grammar"].is_error
    assert found["grammar"].attributes["turnstile.key"] == "abc"
    assert found["compile"].parent == found["grammar"].id and found["compile"].tier == "compiler"
    assert abs(found["compile"].ended - found["compile"].began - 0.25) < 1e-6


@pytest.mark.parametrize(
    "variables",
    [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}],
)
def test_nothing_is_recorded_without_the_variables(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if variables and "OTEL_EXPORTER_OTLP_ENDPOINT" not in variables:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing.cache_clear()
    found = tracing("router")
    assert type(found) is Tracing and type(found.begin("request", SENT)) is Span
    assert found.begin("request", SENT).traceparent == ""
    tracing.cache_clear()
    assert router_tracing is tracing


def test_another_protocol_is_refused_by_name(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL: .* not by grpc"):
        tracing("router")


def test_off_it_imports_nothing() -> None:
    program = "import sys; from grammar_workers.tracing import tracing; tracing('x').begin('y', None).end(); "
    program += "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
