"""A schema goes in over HTTP, matching JSON comes out."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.integration.server import Server
from tests.integration.traffic import PERSON, PROMPT, check, complete, stream, structured

pytestmark = pytest.mark.anyio


async def test_the_printed_curl_answers_with_valid_json(server: Server) -> None:
    (line,) = [line for line in server.log.splitlines() if line.startswith("curl ")]
    command = shlex.split(line)
    answer = subprocess.run([*command, "--silent", "--noproxy", "*"], capture_output=True, timeout=120, check=True)
    (choice,) = json.loads(answer.stdout)["choices"]
    assert choice["finish_reason"] == "stop"
    schema = json.loads(command[-1])["response_format"]["schema"]
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_openai_client_gets_the_same_streamed_and_whole(
    client: openai.AsyncOpenAI, temperature: float
) -> None:
    fields: dict[str, Any] = {**structured(PERSON, temperature=temperature, seed=11), "model": "turnstile-tiny"}
    whole = await client.chat.completions.create(**fields)
    chunks = [chunk async for chunk in await client.chat.completions.create(**fields, stream=True)]
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert check((streamed, str(whole.choices[0].finish_reason)), PERSON)


async def test_both_endpoints_and_free_text(client: openai.AsyncOpenAI) -> None:
    completion = await client.completions.create(model="turnstile-tiny", prompt="Once", max_tokens=5, temperature=0)
    assert completion.usage is not None and 1 <= completion.usage.completion_tokens <= 5
    choice = await client.completions.create(
        model="turnstile-tiny", prompt="Once", extra_body={"structured_outputs": {"choice": ["left", "right"]}}
    )
    assert choice.choices[0].text in ("left", "right") and choice.choices[0].finish_reason == "stop"
    chat = await client.chat.completions.create(model="turnstile-tiny", messages=PROMPT, max_tokens=5)  # type: ignore[arg-type]
    assert chat.choices[0].finish_reason in ("stop", "length")


async def test_equal_request_ids_give_equal_answers(http: httpx.AsyncClient) -> None:
    body = structured(PERSON, temperature=1)
    answers = [await http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"}) for _ in "ab"]
    first, again = [answer.json() for answer in answers]
    assert first["choices"] == again["choices"] and first["id"] == "mine"
    assert answers[0].headers.get_list("x-request-id") == ["mine"]
    unnamed = await http.post("/v1/chat/completions", json=body)
    assert unnamed.headers.get_list("x-request-id") == [unnamed.json()["id"]]


async def test_two_hundred_requests_over_forty_schemas(http: httpx.AsyncClient, schemas: list[Any]) -> None:
    chosen = [schemas[i % len(schemas)] for i in range(200)]
    bodies = [structured(schema, temperature=1, seed=i) for i, schema in enumerate(chosen)]
    answers = await asyncio.gather(*(complete(http, body) for body in bodies))
    finished = [check(answer, schema) for answer, schema in zip(answers, chosen, strict=True)]
    assert sum(finished) >= 150, f"only {sum(finished)} of 200 finished"


REFUSED = {
    "unsupported keyword": (
        {"type": "json_schema", "schema": {"properties": {"a": {"pattern": "(a)\\1"}}}},
        "/properties/a/pattern",
    ),
    "malformed keyword": ({"type": "json_schema", "schema": {"type": "strin"}}, "/type"),
    "unresolvable reference": ({"type": "json_schema", "schema": {"$ref": "#/$defs/none"}}, "/$ref"),
    "malformed pattern": ({"type": "json_schema", "schema": {"type": "string", "pattern": "("}}, "/pattern"),
    "malformed regex": ({"type": "regex", "pattern": "a("}, "position"),
    "NUL": ({"type": "regex", "pattern": "a\0("}, "position"),
    "unsatisfiable": ({"type": "json_schema", "schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "no value"),
    "exploding regex": ({"type": "regex", "pattern": "(a|b)*a(a|b){40}"}, "(fixed limit max_"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_bad_specification_hurts_nobody_else(http: httpx.AsyncClient, name: str) -> None:
    response_format, place = REFUSED[name]
    others = [structured(PERSON, temperature=1, seed=seed) for seed in range(4)]
    alone = await asyncio.gather(*(complete(http, body) for body in others))
    bad = {"messages": PROMPT, "response_format": response_format}
    *together, response, streamed = await asyncio.gather(
        *(stream(http, body) for body in others),
        http.post("/v1/chat/completions", json=bad),
        http.post("/v1/chat/completions", json={**bad, "stream": True}),
    )
    assert together == alone
    for refused in (response, streamed):
        assert refused.status_code == 400, refused.text
        detail = refused.json()["error"]
        assert detail["param"] == "response_format" and place in json.dumps(detail), detail
    assert (await http.get("/health")).status_code == 200
