"""The server that `benchmarks.cold_storm` compares the grammar tier with: it follows ours in all but who compiles."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from benchmarks.cold_storm import server_arguments
from tests.integration.server import Server

pytestmark = pytest.mark.long


def test_a_replica_that_compiles_answers_and_refuses(tmp_path: Path) -> None:
    def answer(schema: object) -> httpx.Response:
        response_format = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
        body = {"messages": [{"role": "user", "content": "Hello"}], "response_format": response_format}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)

    with Server(server_arguments(str(tmp_path)), module="benchmarks.in_replica") as server:
        either = {"a": {"type": "boolean"}}
        found = answer({"type": "object", "properties": either, "required": ["a"], "additionalProperties": False})
        assert found.status_code == 200
        assert json.loads(found.json()["choices"][0]["message"]["content"])["a"] in (True, False)
        refused = answer({"type": "integer", "minimum": 2, "maximum": 1})
        assert refused.status_code == 400 and "minimum" in refused.json()["error"]["message"]
