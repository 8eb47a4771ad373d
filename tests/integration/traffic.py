"""Requests that tests send, and what must be true of their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import jsonschema

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}

PROMPT = [{"role": "user", "content": "Extract the person: Alice Moore is 34 years old and lives in Paris."}]


def structured(schema: Any, **fields: Any) -> dict[str, Any]:
    """Body of a chat completion under a schema."""
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {"messages": PROMPT, "response_format": response_format, "max_tokens": 200, **fields}


async def complete(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str]:
    """Text and finish reason of an answer, which must be a success."""
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"]


async def stream(
    http: httpx.AsyncClient, body: dict[str, Any], *, started: asyncio.Event | None = None
) -> tuple[str, str]:
    """As `complete`, received as a stream; `started` is set at the first text."""
    text, finish_reason = "", ""
    async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            (choice,) = chunk["choices"]
            text += choice["delta"].get("content", "")
            finish_reason = choice["finish_reason"] or finish_reason
            if text and started is not None:
                started.set()
    return text, finish_reason


def check(answer: tuple[str, str], schema: Any) -> bool:
    """Whether the answer is finished; a finished one must be valid."""
    text, finish_reason = answer
    if finish_reason == "stop":
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
        return True
    assert finish_reason == "length", finish_reason
    return False
