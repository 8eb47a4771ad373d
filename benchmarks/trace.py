"""One cold request, as its trace shows it: which tier did what, when and for how long.

    python -m benchmarks.trace [--picture trace.svg]

A real server with Redis sends its spans to a collector in this process. After a few requests that warm it up, one comes
whose schema nobody has seen, as a part of a client's trace. Prints its spans as a table, and draws them. Needs the
extra `otel`. Exit status 1 when the trace lacks a span, or one lies outside of the one that it is a part of.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from html import escape
from pathlib import Path

import httpx

from benchmarks.heavy_schemas import heavy_schema
from benchmarks.load import START_DEADLINE_S
from tests.integration.server import Server
from tests.redis_server import RedisServer
from tests.trace_collector import CollectedSpan, Collector

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ROUTER = ("request", "turn", "first event")
COMPILER = ("grammar", "lookup", "lock", "queue", "compile", "store")
REPLICA = ("generate", "queue", "prefill", "load", "first mask", "decode")
SLACK_S = 0.005
"""Clocks of processes are put in relation once: so far apart may they be."""
COLOURS = {"router": "#6b7a90", "compiler": "#c77d2e", "replica": "#2f7dbf"}
ROW, LEFT, WIDTH = 24, 190, 900


def ask(url: str, number: int, headers: dict[str, str]) -> None:
    body = {
        "messages": [{"role": "user", "content": "Fill in the form, please. " * 20}],
        "max_tokens": 40,
        "temperature": 0,
        "response_format": {"type": "json_schema", "schema": heavy_schema(number)},
    }
    httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120).raise_for_status()


def traced(collector: Collector, url: str) -> list[CollectedSpan]:
    """The spans of one cold request: parents first, then by their beginning."""
    for number in range(3):
        ask(url, number, {})
    ask(url, 100, {"traceparent": f"00-{TRACE}-{CLIENT}-01"})
    collector.wait_for(TRACE, len(ROUTER) + len(COMPILER) + len(REPLICA))
    spans = sorted((span for span in collector.spans if span.trace == TRACE), key=lambda span: span.began)
    ordered: list[CollectedSpan] = []

    def add(parent: str) -> None:
        for span in spans:
            if span.parent == parent:
                ordered.append(span)
                add(span.id)

    add(CLIENT)
    return ordered


def mistakes(spans: list[CollectedSpan]) -> list[str]:
    by_id = {span.id: span for span in spans}
    wanted = {("router", n) for n in ROUTER} | {("compiler", n) for n in COMPILER} | {("replica", n) for n in REPLICA}
    found = [f"no span: {tier} {name}" for tier, name in sorted(wanted - {(span.tier, span.name) for span in spans})]
    for span in spans:
        around = by_id.get(span.parent)
        if around and not around.began - SLACK_S <= span.began <= span.ended <= around.ended + SLACK_S:
            found.append(f"{span.tier} {span.name} lies outside of {around.tier} {around.name}")
    return found


def picture(spans: list[CollectedSpan]) -> str:
    """A bar for each span, as SVG."""
    start, end = spans[0].began, max(span.ended for span in spans)
    scale = (WIDTH - LEFT - 90) / (end - start)
    height = ROW * (len(spans) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13"><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    ]
    for row, span in enumerate(spans):
        y, x = row * ROW + 8, LEFT + (span.began - start) * scale
        width = max((span.ended - span.began) * scale, 1.5)
        took = f"{1000 * (span.ended - span.began):.1f} ms"
        inner = 0 if row == 0 or span.name in ("grammar", "generate") else 12
        lines.append(
            f'<text x="{8 + inner}" y="{y + 14}" fill="#1c2330">{escape(f"{span.tier}: {span.name}")}</text>'
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="18" rx="2" fill="{COLOURS[span.tier]}"/>'
            f'<text x="{x + width + 5:.1f}" y="{y + 14}" fill="#5a6475">{took}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="where to draw the spans, as SVG")
    options = parser.parse_args()
    with Collector() as collector, RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "200"
        arguments = {
            "store": f"{redis.url}?file={folder}/grammars",
            "compiler": {"num_cpus": 0.1, "processes": 1},
            "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "max_length": 2048}},
        }
        with Server(arguments, deadline_s=START_DEADLINE_S) as server:
            spans = traced(collector, server.url)
    print("| tier | span | begins at ms | takes ms |\n|---|---|---|---|")
    for span in spans:
        begin, took = 1000 * (span.began - spans[0].began), 1000 * (span.ended - span.began)
        print(f"| {span.tier} | {span.name} | {begin:.1f} | {took:.1f} |")
    if options.picture is not None:
        options.picture.write_text(picture(spans))
    found = mistakes(spans)
    print("\n" + ("\n".join(found) or "Every span is there, inside of the one that it is a part of."))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
