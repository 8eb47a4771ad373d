"""schemathesis' coverage and stateful phases against a running server, to their ends.

    python -m tests.integration.phases [--url http://127.0.0.1:8000] [--most 20]

The first tries each keyword of the OpenAPI document with values inside and outside of it, the second calls paths with
what others have answered. Formats of structural tags hold formats; schemathesis writes all of them out and takes more
memory than there is. So what a schema says of schemas that lead back to it is left out: each is tried as a whole once.
Prints schemathesis' report, and exits as it does. Without `--url` a server is started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.integration.server import Server

PHASES = "coverage,stateful"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SLOWEST_S = 120
SCHEMAS = "#/components/schemas/"
LINKS = [
    ("/v1/grammars", "post", "/v1/grammars/{key}", "get", {"key": "$response.body#/key"}),
    ("/v1/grammars", "post", "/v1/grammars/{key}", "delete", {"key": "$response.body#/key"}),
    ("/v1/grammars/{key}", "delete", "/v1/grammars/{key}", "get", {"key": "$request.path.key"}),
    ("/v1/models", "get", "/v1/models/{name}", "get", {"name": "$response.body#/data/0/id"}),
]
"""What the stateful phase follows: path and method, those of what is called next, and its parameters."""


def without_circles(document: dict[str, Any]) -> dict[str, Any]:
    """A copy of an OpenAPI document in which no schema leads back to itself: such references allow anything."""
    schemas = document["components"]["schemas"]
    named = {name: set(_references(schema)) for name, schema in schemas.items()}

    def reached_from(name: str) -> set[str]:
        found: set[str] = set()
        pending = [name]
        while pending:
            new = named[pending.pop()] - found
            found |= new
            pending += new
        return found

    reached = {name: reached_from(name) for name in schemas}

    def cut(node: Any, name: str) -> Any:
        if isinstance(node, list):
            return [cut(one, name) for one in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node and name in reached[node["$ref"].removeprefix(SCHEMAS)]:
            return {}
        # A discriminator chooses among references, which are gone.
        left_out = {"discriminator"} if any(name in reached[one] for one in _references(node)) else set()
        return {key: cut(value, name) for key, value in node.items() if key not in left_out}

    schemas = {name: cut(schema, name) if name in reached[name] else schema for name, schema in schemas.items()}
    return {**document, "components": {**document["components"], "schemas": schemas}}


def link(document: dict[str, Any]) -> None:
    """Add `LINKS` to an OpenAPI document."""
    for path, method, following, how, parameters in LINKS:
        links = document["paths"][path][method]["responses"]["200"].setdefault("links", {})
        links[f"{how} {following}"] = {
            "operationId": document["paths"][following][how]["operationId"],
            "parameters": parameters,
        }


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].removeprefix(SCHEMAS)
        node = list(node.values())
    for one in node if isinstance(node, list) else ():
        yield from _references(one)


def run(url: str, most: int) -> int:
    """Exit status; `most`: scenarios of the stateful phase."""
    program = str(Path(sys.executable).with_name("schemathesis"))
    options = ["--phases", PHASES, "--checks", CHECKS, "--max-examples", str(most), "--seed", "1", "--no-color"]
    bounds = ["--request-timeout", str(SLOWEST_S), "--continue-on-failure"]
    document = without_circles(httpx.get(f"{url}/openapi.json").raise_for_status().json())
    link(document)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        return subprocess.run(
            [program, "run", file.name, "--url", url, *options, *bounds], stdin=subprocess.DEVNULL, check=False
        ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--most", type=int, default=20, help="scenarios of the stateful phase")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(Server({"store": "memory://"})).url
        return run(url, options.most)


if __name__ == "__main__":
    sys.exit(main())
