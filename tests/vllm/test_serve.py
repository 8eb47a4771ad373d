"""`vllm serve` with our masks, over HTTP: every kind of constraint, refusals, many clients, restarts."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from grammar_workers.keys import grammar_key
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.documents import curl_requests
from tests.vllm.server import MODEL, vllm_serve

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


def test_what_the_guide_tells_people_to_send_is_answered_as_asked(client: openai.OpenAI) -> None:
    address, sent = "http://127.0.0.1:8000", 0
    for request in curl_requests("docs/vllm.md", address):
        url = request.url.replace(f"{address}/", str(client.base_url).removesuffix("v1/"))
        if request.body is None:
            assert "\nturnstile_mask_fills_total" in httpx.get(url).text
            continue
        answer = httpx.post(url, content=request.body, headers=request.headers, timeout=120)
        assert answer.status_code == 200, f"line {request.line}: {answer.text}"
        (choice,), asked = answer.json()["choices"], json.loads(request.body)
        assert choice["finish_reason"] == "stop"
        content = choice["message"]["content"]
        if "format" in asked.get("response_format", ()):
            found = re.fullmatch(r"(\(*)x(\)*)<point>(.*)</point>", content)
            assert found and len(found[1]) == len(found[2]) and set(json.loads(found[3])) == {"x"}
        elif "response_format" in asked:
            schema = asked["response_format"]["json_schema"]["schema"]
            jsonschema.validate(json.loads(content), schema)
            assert not any(word in content for word in schema.get("x-turnstile", {}).get("banned_words", ()))
        else:
            outputs = asked["structured_outputs"]
            nested = r"\(*x\)* (true|false)" if "grammar" in outputs else "|".join(outputs.get("choice", ()))
            assert re.fullmatch(outputs.get("regex", nested), content)
        sent += 1
    assert sent == 6


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


def extended(**extension: Any) -> dict[str, Any]:
    return of_schema({**PERSON, "x-turnstile": extension})


def test_options_of_one_request(client: openai.OpenAI) -> None:
    texts = {
        ask(client, response_format=extended(property_order="any", whitespace="flexible"), temperature=1.5, seed=seed)
        .message.content.replace(" ", "")
        .partition(":")[0]
        for seed in range(12)
    }
    assert len(texts) > 1
    plain = [ask(client, response_format=of_schema(PERSON), temperature=1.5, seed=seed) for seed in range(4)]
    assert all(choice.message.content.startswith('{"name": "') for choice in plain)


@pytest.mark.parametrize(
    ("extension", "expected"),
    [
        ({"white_space": "compact"}, "invalid_grammar: .*at /json/x-turnstile/white_space"),
        ({"banned_words": ["a", ""]}, "invalid_grammar: .*at /json/x-turnstile/banned_words/1"),
    ],
)
def test_a_wrong_field_of_the_extension(client: openai.OpenAI, extension: Any, expected: str) -> None:
    with pytest.raises(openai.BadRequestError, match=expected):
        ask(client, response_format=extended(**extension))


def test_banned_words(client: openai.OpenAI) -> None:
    schema = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 6}
    response_format = of_schema({**schema, "x-turnstile": {"banned_words": ["GREEN"]}})
    for seed in range(6):
        choice = ask(client, response_format=response_format, temperature=1.5, seed=seed)
        assert choice.finish_reason == "stop" and set(json.loads(choice.message.content)) <= {"red", "blue"}


def test_every_output_is_complete_within_its_budget(client: openai.OpenAI) -> None:
    """Sixteen at a time, at a temperature at which many others are cut."""
    text = {"type": "string", "maxLength": 400}
    items = {"type": "array", "items": {"type": "object", "properties": {"name": text}, "required": ["name"]}}
    schema = {"type": "object", "properties": {"people": items, "note": text}, "required": ["people", "note"]}

    def finish(seed: int, **extension: Any) -> Any:
        response_format = of_schema({**schema, "x-turnstile": extension})
        return ask(client, response_format=response_format, temperature=2.0, seed=seed, max_tokens=24 + seed)

    with concurrent.futures.ThreadPoolExecutor(16) as clients:
        complete = list(clients.map(lambda seed: finish(seed, finish_within_budget=True), range(32)))
        free = list(clients.map(finish, range(32)))
    for choice in complete:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), schema)
    assert any(choice.finish_reason == "length" for choice in free)
    fits = of_schema({"type": "array", "items": {"enum": ["a"]}, "x-turnstile": {"finish_within_budget": True}})
    assert ask(client, response_format=fits, max_tokens=None, temperature=1.0).finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match=r"budget_too_small: .*the shortest output found needs"):
        finish(-20, finish_within_budget=True)


def test_metrics_show_how_long_masks_take(client: openai.OpenAI) -> None:
    def metrics() -> dict[str, float]:
        lines = httpx.get(str(client.base_url).replace("/v1/", "/metrics")).text.splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if line.startswith("turnstile"))}

    before = metrics()
    tokens = ask(client, response_format=of_schema(PERSON), temperature=0).message.content
    after = metrics()
    for name in ("turnstile_mask_fill", "turnstile_token_accept"):
        assert after[f"{name}s_total"] - before[f"{name}s_total"] > len(tokens) / 11
        assert 0 < after[f"{name}_seconds_total"] - before[f"{name}_seconds_total"] < 10
        assert before[f"{name}_slowest_seconds"] <= after[f"{name}_slowest_seconds"] <= after[f"{name}_seconds_total"]


@pytest.mark.parametrize(
    ("reference", "error", "expected"),
    [
        ("0" * 64, openai.NotFoundError, "grammar_not_found: no grammar has the key"),
        ("../../secret", openai.BadRequestError, "invalid_grammar: .*no grammar key"),
        ("0" * 64 + "?colour=1", openai.BadRequestError, "no setting 'colour'"),
    ],
)
def test_a_wrong_reference_is_the_clients_own(
    client: openai.OpenAI, reference: str, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        ask(client, extra_body={"structured_outputs": {"grammar": f"turnstile:{reference}"}})


def test_an_output_goes_on_after_the_tokens_that_came_out(client: openai.OpenAI) -> None:
    """By key, with the emitted tokens behind the prompt, as a router goes on with an output whose replica died."""
    schema = {"type": "array", "items": {"enum": ["alpha", "beta", "gamma"]}, "minItems": 4, "maxItems": 4}
    key = grammar_key({"type": "json_schema", "schema": schema}, load_vocabulary(str(MODEL)).fingerprint)
    ask(client, response_format=of_schema(schema))

    def complete(prompt: list[int], reference: str) -> list[int]:
        answer = client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=100,
            temperature=0,
            extra_body={"structured_outputs": {"grammar": reference}, "return_token_ids": True},
        )
        assert answer.choices[0].finish_reason == "stop"
        return list(answer.choices[0].token_ids)

    prompt = [70, 71, 72]
    whole = complete(prompt, f"turnstile:{key}")
    for cut in (1, len(whole) // 2, len(whole) - 1):
        emitted = ",".join(map(str, whole[:cut]))
        assert whole[:cut] + complete(prompt + whole[:cut], f"turnstile:{key}?emitted={emitted}") == whole
    with pytest.raises(openai.BadRequestError, match="emitted before"):
        complete(prompt, f"turnstile:{key}?emitted=0,1")
