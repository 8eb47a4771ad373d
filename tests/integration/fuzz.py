"""Generated requests against a running server: no fault of the server, no status that its document does not have.

    python -m tests.integration.fuzz [--requests 2000] [--url http://127.0.0.1:8000]

Half of the requests are made by schemathesis from the OpenAPI document, good and bad ones for every path; the other
half ask for text under JSON Schemas made by hypothesis, and what comes out complete must be valid. Without `--url` a
server is started. Exit status 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import content_type_conformance, not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from tqdm import tqdm

from tests.grammar_workers.schemas import is_valid, schemas
from tests.integration.server import Server

CHECKS: Any = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
MOST_TOKENS = 8
"""Of each answer: what is looked at here is whether there is one."""


def fuzz(url: str, requests: int) -> collections.Counter[str]:
    """How many answers had each status, for requests to documented paths and for schemas. Raises what checks raise."""
    counts: collections.Counter[str] = collections.Counter()
    document = schemathesis.openapi.from_url(f"{url}/openapi.json", timeout=120)
    operations = [found.ok() for found in document.get_all_operations()]
    with_body = [operation for operation in operations if operation.body]
    each = -(-requests // (2 * len(with_body) * len(MODES)))
    with tqdm(total=requests, unit="request", disable=None) as progress:
        for operation in operations:
            for mode in MODES:
                many = each if operation in with_body else 5
                with contextlib.suppress(Unsatisfiable):  # paths without input have no bad one
                    _many(many)(given(operation.as_strategy(mode))(lambda case: _send(case, counts, progress)))()
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
            wild = schemas(wild=True)
            _many(requests // 2)(given(wild)(lambda schema: _ask(http, schema, counts, progress)))()
    return counts


def _many(examples: int) -> Any:
    quiet = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(1)(quiet(test))


def _send(case: schemathesis.Case, counts: collections.Counter[str], progress: Any) -> None:
    if isinstance(case.body, dict):
        _shorten(case.body)
    response = case.call(timeout=120)
    counts[f"documented {response.status_code}"] += 1
    progress.update()
    case.validate_response(response, checks=CHECKS)


def _shorten(body: dict[str, Any]) -> None:
    """Sees to it that a good body asks for little."""
    for name in ("max_tokens", "max_output_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if "messages" in body or "prompt" in body:
        body.setdefault("max_tokens", MOST_TOKENS)
    elif "input" in body:
        body.setdefault("max_output_tokens", MOST_TOKENS)


def _ask(http: httpx.Client, schema: Any, counts: collections.Counter[str], progress: Any) -> None:
    body = {
        "messages": [{"role": "user", "content": "Answer."}],
        "response_format": {"type": "json_schema", "schema": schema},
        "max_tokens": 4 * MOST_TOKENS,
    }
    response = http.post("/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"})
    counts[f"schemas {response.status_code}"] += 1
    progress.update()
    assert response.status_code in (200, 400), (schema, response.text)
    if response.status_code == 200 and (choice := response.json()["choices"][0])["finish_reason"] == "stop":
        assert is_valid(schema, choice["message"]["content"]), (schema, choice)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="how many (default %(default)s)")
    parser.add_argument("--url", help="a running server (default: start one)")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(Server({"store": "memory://"})).url
        try:
            counts = fuzz(url, arguments.requests)
        except (AssertionError, BaseExceptionGroup) as error:
            print(f"wrong: {error}")
            return 1
    for what, many in sorted(counts.items()):
        print(f"{what:<20}{many:>7,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
