"""`vllm serve` with our masks, over HTTP: every kind of constraint, refusals, many clients, restarts."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.vllm.server import vllm_serve

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3, "uniqueItems": False},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "Extract the person: Alice Moore is 34 years old and lives in Paris."}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with vllm_serve(tmp_path_factory.mktemp("vllm")) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, **{"max_tokens": 200, **fields})
    return answer.choices[0]


def of_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


def test_json_schemas_from_many_clients(client: openai.OpenAI) -> None:
    """Unseen schemas at temperature 1, sixteen at a time."""
    schemas = [{**PERSON, "properties": {**PERSON["properties"], f"extra{i}": {"type": "boolean"}}} for i in range(32)]
    with concurrent.futures.ThreadPoolExecutor(16) as clients:
        choices = list(
            clients.map(lambda schema: ask(client, response_format=of_schema(schema), temperature=1.0), schemas)
        )
    ended = [
        (choice, schema) for choice, schema in zip(choices, schemas, strict=True) if choice.finish_reason == "stop"
    ]
    assert len(ended) >= 24
    for choice, schema in ended:
        jsonschema.validate(json.loads(choice.message.content), schema)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]+!"}, r"[a-c]{3}-[0-9]+!"),
        ({"choice": ["yes", "no", "per'haps \""]}, "yes|no|per'haps \""),
        ({"grammar": 'root ::= "x" root | "y"'}, "x*y"),
        ({"grammar": 'start: "a" ("b" | "c")+'}, "a[bc]+"),
        ({"json_object": True}, r"(?s)\{.*\}"),
    ],
)
def test_other_constraints(client: openai.OpenAI, constraint: dict[str, Any], pattern: str) -> None:
    for seed in range(5):
        choice = ask(client, temperature=1.0, max_tokens=100, seed=seed, extra_body={"structured_outputs": constraint})
        assert choice.finish_reason == "length" or re.fullmatch(pattern, choice.message.content)


def test_min_tokens_does_not_break_what_has_to_end(client: openai.OpenAI) -> None:
    for least in (1, 4, 30):
        choice = ask(
            client, extra_body={"structured_outputs": {"choice": ["yes", "no"]}, "min_tokens": least}, temperature=1.0
        )
        assert choice.finish_reason == "stop" and choice.message.content in ("yes", "no")


def test_stop_tokens_of_the_user_end_what_is_complete(client: openai.OpenAI) -> None:
    for seed in range(10):
        choice = ask(
            client,
            temperature=1.0,
            seed=seed,
            extra_body={"structured_outputs": {"regex": "[0-9a-f]{4,12}"}, "stop_token_ids": [300, 301, 302]},
        )
        assert choice.finish_reason == "length" or re.fullmatch("[0-9a-f]{4,12}", choice.message.content)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"n": {"type": "strin"}}}, "invalid_grammar: .*at /properties/n/type"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "unsatisfiable_grammar: "),
        ({"type": "string", "pattern": "(?<x>a)\\k<x>"}, "unsupported_grammar: |invalid_grammar: "),
    ],
)
def test_a_refusal_is_the_clients_own(client: openai.OpenAI, schema: Any, expected: str) -> None:
    with pytest.raises(openai.BadRequestError, match=expected):
        ask(client, response_format=of_schema(schema))
    assert ask(client, response_format=of_schema(PERSON), temperature=0).finish_reason == "stop"


def test_streams_and_several_choices(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=of_schema(PERSON), stream=True, n=2, max_tokens=200
    )
    texts = {0: "", 1: ""}
    ended = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ended[choice.index] = choice.finish_reason or ended.get(choice.index)
    for index, text in texts.items():
        assert ended[index] == "length" or jsonschema.validate(json.loads(text), PERSON) is None
