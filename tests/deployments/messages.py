"""What people read when something is wrong: a table of wrong configs and of refused requests with their messages.

    python -m tests.deployments.messages [--url http://127.0.0.1:8000] [--key KEY]

The configs are those of `wrong_configs.py`; the requests go to the server at `--url` (without it: a new one, the
config of this machine), and below their table is which counters of its routers moved. Exit status 1 when a request is
not refused with a 4xx and a message.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.deployments.wrong_configs import messages
from tests.integration.server import Server

METRICS_S = 20
"""Until Ray has collected the metrics of all processes."""

CHAT = "/v1/chat/completions"
SAID = [{"role": "user", "content": "x"}]
ASKED = {"messages": SAID}


def _schema(schema: Any, **options: Any) -> dict[str, Any]:
    return {
        **ASKED,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **options}},
    }


def _structured(**constraint: Any) -> dict[str, Any]:
    return {**ASKED, "structured_outputs": constraint}


def _strings(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", **keywords}}, "required": ["a"]}


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": fields}


TOOL = _function(name="f", parameters={"type": "object"})
REFUSED: list[tuple[str, str, Any]] = [
    ("no JSON", CHAT, b'{"messages": [}'),
    ("no object", CHAT, []),
    ("no messages", CHAT, {}),
    ("messages are text", CHAT, {"messages": "x"}),
    ("role", CHAT, {"messages": [{"role": "robot", "content": "x"}]}),
    ("an image", CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ("field of another server", CHAT, {**ASKED, "guided_json": {"type": "object"}}),
    ("misspelt field", CHAT, {**ASKED, "max_token": 5}),
    ("model", CHAT, {**ASKED, "model": "gpt-9"}),
    ("temperature", CHAT, {**ASKED, "temperature": -1}),
    ("max_tokens is text", CHAT, {**ASKED, "max_tokens": "many"}),
    ("many choices", CHAT, {**ASKED, "n": 1000}),
    ("top_logprobs", CHAT, {**ASKED, "logprobs": True, "top_logprobs": 99}),
    ("long prompt", CHAT, {"messages": [{"role": "user", "content": "word " * 9000}]}),
    ("format", CHAT, {**ASKED, "response_format": {"type": "xml"}}),
    ("no schema", CHAT, {**ASKED, "response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
    ("two constraints", CHAT, {**_schema({}), "structured_outputs": {"regex": "a"}}),
    ("misspelt type", CHAT, _schema({"type": "strng"})),
    ("misspelt keyword", CHAT, _schema(_strings(maxlength=3), strict=True)),
    ("nothing is valid", CHAT, _schema(_strings(minLength=5, maxLength=3))),
    ("reference to nothing", CHAT, _schema({"$ref": "#/$defs/none"})),
    ("reference elsewhere", CHAT, _schema({"$ref": "https://example.com/schema.json"})),
    ("format is a number", CHAT, _schema(_strings(format=3))),
    ("keyword out of reach", CHAT, _schema({"$dynamicRef": "#none"})),
    ("step", CHAT, _schema({"type": "number", "multipleOf": 0})),
    ("pattern of JavaScript", CHAT, _schema(_strings(pattern=r"^(a)\1$"))),
    ("pattern", CHAT, _schema(_strings(pattern="(a"))),
    ("large pattern", CHAT, _schema(_strings(pattern="^(" + "|".join(f"w{n}" for n in range(60_000)) + ")$"))),
    ("large enum value", CHAT, _schema({"const": "x" * 2_000_000})),
    ("regex", CHAT, _structured(regex="a{2,1}")),
    ("regex of many states", CHAT, _structured(regex="(?:(?=.*ab.{40}c)|[a-z]){300}")),
    ("no choice", CHAT, _structured(choice=[])),
    ("Lark", CHAT, _structured(grammar='start: "a" |* b')),
    ("Lark rule", CHAT, _structured(grammar="start: word")),
    ("GBNF rule", CHAT, _structured(grammar="root ::= word")),
    ("pattern element", CHAT, _structured(pattern=[["UPPER", "many"]])),
    ("tag", CHAT, _structured(structural_tag={"type": "structural_tag", "format": {"type": "tags"}})),
    ("known key", CHAT, _structured(key="0" * 64)),
    ("two tools of one name", CHAT, {**ASKED, "tools": [TOOL, TOOL]}),
    ("tool that is not there", CHAT, {**ASKED, "tools": [TOOL], "tool_choice": _function(name="g")}),
    ("flat tool", CHAT, {**ASKED, "tools": [{"type": "function", "name": "f"}]}),
    ("tool's schema", CHAT, {**ASKED, "tools": [_function(name="f", parameters={"type": 5})]}),
    ("time is up", CHAT, {**_schema({"type": "object"}), "timeout_s": 1e-6}),
    ("no prompt", "/v1/completions", {}),
    ("stored conversation", "/v1/responses", {"input": "x", "previous_response_id": "resp_1"}),
    ("tool of the host", "/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}),
    ("no max_tokens", "/v1/messages", {"model": "x", "messages": SAID}),
    ("nothing to count", "/tokenize", {}),
    ("grammar of no kind", "/v1/grammars", {"type": "poem"}),
    ("path", "/v1/chat/completion", ASKED),
]  # fmt: skip
"""The kind of mistake, the path, and the body: JSON, or bytes."""


def refusals(client: httpx.Client) -> list[tuple[str, int, str]]:
    """Sends `REFUSED`; returns each one's name, status, and the error as a client sees it."""
    found = []
    for name, path, body in REFUSED:
        sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        response = client.post(path, headers={"content-type": "application/json"}, **sent)
        error = {}
        with contextlib.suppress(ValueError, AttributeError):
            error = response.json().get("error", {})
        place = " at " + str(error["param"]) if error.get("param") else ""
        found.append(
            (name, response.status_code, f"{error.get('code') or error.get('type')}{place}: {error.get('message')}")
        )
    return found


def _counters(server: Server) -> dict[str, float]:
    """Requests and generations by their own labels, the processes added up."""
    totals: dict[str, float] = collections.defaultdict(float)
    for name in ("turnstile_requests", "turnstile_generations"):
        for series, value in server.series(name).items():
            labels = re.findall(r'(?:outcome|code|finish_reason)="[^"]*"', series)
            totals[f"{name}_total{{{', '.join(labels)}}}"] += value
    return totals


def _row(*cells: object) -> None:
    print("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " / ") for cell in cells) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server (default: start one)")
    parser.add_argument("--key", help="its API key")
    arguments = parser.parse_args()
    print("## Wrong configs\n\n| mistake | goes on | message |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for wrong, said, goes_on in messages(Path(folder)):
            _row(wrong.name, "yes" if goes_on else "no", said)
    headers = {"authorization": f"Bearer {arguments.key}"} if arguments.key else {}
    with contextlib.ExitStack() as stack:
        server = None if arguments.url else stack.enter_context(Server({}))
        url = arguments.url or server.url  # type: ignore[union-attr]
        client = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False))
        before = _counters(server) if server else {}
        found = refusals(client)
        print(f"\n## {len(found)} refused requests\n\n| mistake | status | error |\n|---|---|---|")
        for row in found:
            _row(*row)
        if server:
            print("\n## Counters that moved\n\n| counter | by |\n|---|---|")
            time.sleep(METRICS_S)
            for key, value in sorted(_counters(server).items()):
                if value != before.get(key, 0):
                    _row(f"`{key}`", f"{value - before.get(key, 0):g}")
    return int(any(not 400 <= status < 500 or text.endswith("None") for _, status, text in found))


if __name__ == "__main__":
    sys.exit(main())
