"""`vllm serve` that has its grammars compiled by a Turnstile server: refusals, options, and the server's end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
import uvicorn

from tests.vllm.server import vllm_serve
from tests.vllm.test_serve import PERSON, ask, of_schema
from tests.vllm.turnstile_server import API_KEY, turnstile_server

Served = tuple[openai.OpenAI, uvicorn.Server]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("url")
    with (
        turnstile_server(folder, f"file://{folder}/store") as (compiler, server),
        vllm_serve(folder, TURNSTILE_URL=compiler + "/", TURNSTILE_API_KEY=API_KEY) as url,
    ):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60), server


def test_schemas_are_compiled_there(served: Served) -> None:
    client, _ = served
    for number in range(3):
        schema = {**PERSON, "properties": {**PERSON["properties"], f"extra{number}": {"type": "null"}}}
        choice = ask(client, response_format=of_schema(schema), temperature=1.0, seed=number)
        assert (
            choice.finish_reason == "length" or jsonschema.validate(json.loads(choice.message.content), schema) is None
        )


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"n": {"type": "strin"}}}, "invalid_grammar: .*at /properties/n/type"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "unsatisfiable_grammar: "),
        ({"enum": ["x" * 20_000]}, "grammar_limit_exceeded: "),
        (
            {**PERSON, "x-turnstile": {"whitespace": "flexible"}},
            "unsupported_grammar: .*at /json/x-turnstile/whitespace",
        ),
        ({"enum": ["abc"], "x-turnstile": {"banned_words": ["b", ""]}}, "at /json/x-turnstile/banned_words/1"),
    ],
)
def test_its_refusals_are_the_clients_own(served: Served, schema: Any, expected: str) -> None:
    with pytest.raises(openai.BadRequestError, match=expected):
        ask(served[0], response_format=of_schema(schema))


ENDLESS = {"ignore_eos": True}
"""What a model draws may end at any time."""


def test_when_it_is_gone_others_go_on(served: Served) -> None:
    client, server = served
    schema = {"enum": ["one", "two", "three"]}
    assert json.loads(ask(client, response_format=of_schema(schema)).message.content) in schema["enum"]
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=300,
        stream=True,
        temperature=1.0,
        extra_body=ENDLESS,
    )
    next(iter(stream))
    server.should_exit = True
    deadline = time.monotonic() + 200
    while True:
        try:
            ask(client, response_format=of_schema({"enum": [f"new {time.monotonic()}"]}))
        except openai.InternalServerError as error:
            assert error.status_code == 503 and "/v1/grammars did not answer" in str(error)
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert sum(1 for chunk in stream if chunk.choices) > 1
    assert ask(client, max_tokens=5, extra_body=ENDLESS).finish_reason == "length"
