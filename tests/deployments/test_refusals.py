"""Refusals over HTTP say what to change: the keyword that is meant, the option, the limit, the place and its value."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from deployments.http.errors import ApiError
from deployments.http.unenforced import NOTES_HEADER
from grammar_workers import GrammarError, GrammarOptions, compile_grammar, grammar_key
from grammar_workers.languages.json_schema.read.keywords import misspelt
from tests.deployments.fakes import FINGERPRINT, FakeCompiler
from tests.grammar_workers.vocabularies import bytes_vocabulary

pytestmark = pytest.mark.anyio

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ANY = {"type": "json_object"}
SCHEMA = {"type": "object", "properties": {"maxlength": {"type": "string", "maxlength": 4}}}


def refused(specification: dict[str, Any], **options: Any) -> ApiError:
    with pytest.raises(GrammarError) as raised:
        compile_grammar(specification, bytes_vocabulary(), options=GrammarOptions(**options))
    return ApiError.of_grammar(raised.value.to_dict(), param="response_format", specification=specification)


@pytest.mark.parametrize(
    ("specification", "message"),
    [
        (
            {"type": "json_schema", "schema": {"type": "string", "pattern": r"(a)\1"}},
            r"alternatives; .*`on_unsupported: report`: the keyword is then listed, not enforced "
            r'\(at /pattern: "\(a\)\\\\1"; character 3\)$',
        ),
        ({"type": "regex", "pattern": "ab(c)++d"}, r"write the quantifier without the second \+ \(at character \d, "),
        ({"type": "regex", "pattern": "a{1048577}"}, r"the repeat count 1048577 is above 1048576; repeat a group"),
        (
            {"type": "regex", "pattern": "x" * 40_001},
            r"more than 40000 characters \(fixed limit max_pattern_char.*enum",
        ),
        (
            {"type": "json_schema", "schema": {"type": "string", "maxLength": -1}},
            r"\(at /maxLength: -1\)$",
        ),
        (
            {"type": "structural_tag", "triggers": ["<g"], "tags": [{"begin": "<f", "content": ANY, "end": ">"}]},
            r"^`begin` starts with none of the `triggers`; change one of them \(at /tags/0/begin: \"<f\"\)$",
        ),
    ],
)
def test_a_refusal_says_what_to_change_and_its_place_once(specification: dict[str, Any], message: str) -> None:
    error = refused(specification)
    assert re.search(message, error.detail.message), error.detail.message
    assert error.detail.message.count("(at ") == 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxlength", "maxLength"),
        ("minlenght", "minLength"),
        ("requird", "required"),
        ("anyof", "anyOf"),
        ("additionalproperties", "additionalProperties"),
        ("patern", "pattern"),
        ("itmes", "items"),
        ("tpye", "type"),
        ("min_length", "minLength"),
        ("additional_properties", "additionalProperties"),
        ("_uniqueItems", None),
        ("item_count", None),
        *(
            (name, None)
            for name in ("note", "when", "count", "x-maxLength", "_format", "example", "nullable", "discriminator")
        ),
        *((name, None) for name in ("menu", "mites")),  # the letters of `enum` and `items`
        *((name, None) for name in ("definition", "defs", "xml", "externalDocs", "maxLength", "readonly", "tag")),
    ],
)
def test_what_is_nearly_a_keyword(name: str, meant: str | None) -> None:
    assert misspelt(name) == meant


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "schema": SCHEMA, "strict": True},
    ],
)
async def test_a_misspelt_keyword_is_an_error_under_strict_alone(
    http: httpx.AsyncClient, compiler: FakeCompiler, format_: dict[str, Any]
) -> None:
    """The property that has the name of one is none."""
    answer = await http.post("/v1/chat/completions", json={**HELLO, "response_format": format_})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["pointer"] == "/properties/maxlength/maxlength", error
    assert "did you mean `maxLength`?" in error["message"] and error["message"].endswith(": 4)")
    assert not compiler.calls
    for allowed in ({"strict": False}, {"on_unsupported": "report"}):
        body = {**HELLO, "response_format": {"type": "json_schema", "schema": SCHEMA, "strict": True}, **allowed}
        body["response_format"]["strict"] = body.pop("strict", True)
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    responses = {"input": "x", "text": {"format": {"type": "json_schema", "schema": SCHEMA, "strict": True}}}
    assert "maxLength" in (await http.post("/v1/responses", json=responses)).json()["error"]["message"]


@pytest.mark.parametrize("schema", [{"name": "x", "schema": SCHEMA}, {"name": "str", "age": "int", "title": "t"}])
async def test_names_without_a_keyword_are_an_error_under_strict_alone(
    http: httpx.AsyncClient, schema: dict[str, Any]
) -> None:
    for strict, status in ((True, 400), (False, 200)):
        format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
        answer = await http.post("/v1/chat/completions", json={**HELLO, "response_format": format_})
        assert answer.status_code == status
        assert not strict or "schema in which no keyword asserts anything" in answer.json()["error"]["message"]
    allowed = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"title": "any"}, "strict": True}}
    assert (await http.post("/v1/chat/completions", json={**HELLO, "response_format": allowed})).status_code == 200


FUNCTION = {"name": "f", "parameters": {**SCHEMA, "type": "object"}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            {**HELLO, "tools": [{"type": "function", "function": FUNCTION}]},
            "function.parameters",
        ),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", **FUNCTION}]}, "parameters"),
        (
            "/v1/messages",
            {
                "model": "tiny",
                "max_tokens": 9,
                **HELLO,
                "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
            },
            "input_schema",
        ),
    ],
)
async def test_a_misspelt_keyword_in_a_strict_tool(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    assert (await http.post(path, json=body)).status_code == 200
    (tool,) = body["tools"]
    tool.get("function", tool)["strict"] = True
    answer = await http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and "did you mean `maxLength`?" in error["message"], error
    assert f"`tools[0].{param}`" in error["message"], error
    assert "/properties/maxlength/maxlength" in error["message"]
    assert (await http.post(path, json={**body, "on_unsupported": "report"})).status_code == 200


def test_strict_is_no_part_of_the_key() -> None:
    schema = {"type": "json_schema", "schema": {"type": "string"}}
    assert grammar_key({**schema, "strict": True}, FINGERPRINT) == grammar_key(schema, FINGERPRINT)


async def test_notes_are_in_a_header(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    compiler.answers[0] = {"status": "ready", "source": "compiled", "notes": ["#: ignored keyword 'foo'"]}
    body = {**HELLO, "response_format": {"type": "json_schema", "schema": SCHEMA}}
    answer = await http.post("/v1/chat/completions", json=body)
    assert unquote(answer.headers[NOTES_HEADER]) == "#: ignored keyword 'foo'"


async def test_a_strict_tool_without_a_keyword(http: httpx.AsyncClient) -> None:
    function = {"name": "f", "parameters": {"foo": {}}, "strict": True}
    answer = await http.post(
        "/v1/chat/completions", json={**HELLO, "tools": [{"type": "function", "function": function}]}
    )
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and "has a schema in which no keyword asserts anything" in message
    assert "(at )" not in message
