"""Compiling ahead of the first request, and naming the grammar by its key, on a real server."""

from __future__ import annotations

import asyncio
import secrets

import httpx
import pytest

from tests.integration.conftest import PRECOMPILED

pytestmark = pytest.mark.anyio


async def test_a_grammar_is_compiled_ahead_named_and_removed(http: httpx.AsyncClient) -> None:
    word = secrets.token_hex(4)
    specification = {"type": "choice", "choices": [word]}
    headers = {"x-turnstile-tenant": "team"}
    created = await http.post("/v1/grammars", json={"specification": specification}, headers=headers)
    assert created.status_code == 200, created.text
    grammar = created.json()
    assert (grammar["status"], grammar["source"], grammar["owner"]) == ("ready", "compiled", "team")
    assert grammar["automaton_states"] > len(word) and grammar["artifact_bytes"] > 0

    path = f"/v1/grammars/{grammar['key']}"
    assert (await http.get(path)).json()["status"] == "ready"
    body = {"messages": [{"role": "user", "content": "Say it."}], "structured_outputs": {"key": grammar["key"]}}
    answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for _ in range(4)))
    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == [word] * 4

    assert (await http.delete(path, headers=headers)).json()["deleted"] is True
    unknown = {**body, "structured_outputs": {"key": "0" * 64}}
    missing = await http.post("/v1/chat/completions", json=unknown)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "grammar_not_found")


async def test_a_refused_grammar_says_why_whenever_it_is_asked_for(http: httpx.AsyncClient) -> None:
    specification = {"type": "json_schema", "schema": {"type": "string", "minLength": 3, "maxLength": 2}}
    created = await http.post("/v1/grammars", json={"specification": specification})
    assert (created.status_code, created.json()["error"]["code"]) == (400, "unsatisfiable_grammar")
    assert created.json()["error"]["param"] == "specification"


async def test_compiling_in_the_background(http: httpx.AsyncClient) -> None:
    specification = {"type": "regex", "pattern": f"{secrets.token_hex(4)}[a-z]{{1,9}}"}
    created = await http.post("/v1/grammars", json={"specification": specification, "wait": False})
    assert created.status_code in (200, 202)
    path = f"/v1/grammars/{created.json()['key']}"
    async with asyncio.timeout(200):
        while (await http.get(path)).json().get("status") != "ready":
            await asyncio.sleep(0.1)


async def test_the_list_in_the_config_is_compiled_before_the_first_request(http: httpx.AsyncClient) -> None:
    known = await http.post("/v1/grammars", json={"specification": PRECOMPILED})
    assert known.json()["source"] == "process"
    body = {
        "messages": [{"role": "user", "content": "Say it."}],
        "structured_outputs": {"choice": ["known beforehand"]},
    }
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert (answer["grammar"]["key"], answer["grammar"]["source"]) == (known.json()["key"], "process")
