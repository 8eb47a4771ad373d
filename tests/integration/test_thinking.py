"""Thoughts of a real model that knows none: the limit ends them in time for a complete answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.integration.traffic import PERSON, structured

pytestmark = pytest.mark.anyio

FIELDS: dict[str, Any] = structured(
    PERSON, thinking=True, finish_within_budget=True, max_tokens=120, temperature=1, seed=5
)


async def test_the_answer_behind_the_thoughts_matches(http: httpx.AsyncClient) -> None:
    body = (await http.post("/v1/chat/completions", json=FIELDS)).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop" and body["grammar"]["applies_to"] == "answer"
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    thoughts = choice["message"]["reasoning_content"]
    assert choice["grammar_start"] >= len(thoughts) + len("</think>\n\n")


async def test_streams_and_the_newer_endpoint_tell_the_same(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    whole = (await http.post("/v1/chat/completions", json=FIELDS)).json()["choices"][0]["message"]
    fields = {name: value for name, value in FIELDS.items() if name not in ("thinking", "finish_within_budget")}
    extra = {"thinking": True, "finish_within_budget": True}
    stream = await client.chat.completions.create(**fields, model="turnstile-tiny", stream=True, extra_body=extra)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert "".join(delta.content or "" for delta in deltas) == whole["content"]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == whole["reasoning_content"]

    answer = await client.responses.create(
        model="turnstile-tiny", input="Think.", temperature=0, reasoning={"effort": "low"}, max_output_tokens=20
    )
    assert answer.output[0].type == "reasoning" and answer.status in ("completed", "incomplete")


@pytest.mark.parametrize("budget", [1, 7, 40])
async def test_thoughts_end_where_their_budget_does(
    http: httpx.AsyncClient, client: openai.AsyncOpenAI, budget: int
) -> None:
    """This model never ends them by itself."""
    limits = {"finish_within_budget": False, "thinking_budget": budget, "max_tokens": 400, "temperature": 0}
    body = (await http.post("/v1/chat/completions", json={**FIELDS, **limits})).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop", body
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    thoughts = choice["message"]["reasoning_content"]
    answer = await http.post("/tokenize", json={"prompt": choice["message"]["content"], "add_special_tokens": False})
    assert body["usage"]["completion_tokens"] <= budget + answer.json()["count"] + len("</think>\n\n")
    own = {name: value for name, value in FIELDS.items() if name not in ("thinking", "finish_within_budget")}
    extra = {"thinking_budget": budget, "finish_within_budget": False}
    settings = {**own, "max_tokens": 400, "temperature": 0}
    stream = await client.chat.completions.create(**settings, model="turnstile-tiny", stream=True, extra_body=extra)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert "".join(delta.content or "" for delta in deltas) == choice["message"]["content"]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == thoughts
