"""Every example of the OpenAPI document, sent to a real server as it stands."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

from deployments.http.examples import EXAMPLES

pytestmark = pytest.mark.anyio


async def test_the_document_has_all_of_them(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    for path, shown in EXAMPLES.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert body["examples"].keys() == shown.keys()


@pytest.mark.parametrize("path", EXAMPLES)
async def test_examples_are_answered(http: httpx.AsyncClient, path: str) -> None:
    for name, example in EXAMPLES[path].items():
        request = example["value"]
        answer = await http.post(path, json=request)
        assert answer.status_code in (200, 202), f"{name}: {answer.text}"
        if request.get("stream"):
            assert answer.text.rstrip().endswith("data: [DONE]"), name
        elif path == "/v1/chat/completions":
            check(name, request, answer.json()["choices"][0])


def check(name: str, request: dict[str, Any], choice: dict[str, Any]) -> None:
    """What is easily told about a complete answer under a schema or a choice."""
    if choice["finish_reason"] != "stop":
        return
    wanted = request.get("response_format", {}) | request.get("structured_outputs", {})
    schema = wanted.get("json") or wanted.get("schema") or wanted.get("json_schema", {}).get("schema")
    if schema is not None:
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    if "choice" in wanted:
        assert choice["message"]["content"] in wanted["choice"], name
