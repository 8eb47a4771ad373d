"""Tools with `tool_choice: auto` beside a constraint of the text: calls, or a text that matches, never a mixture."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import httpx
import jsonschema
import pytest

from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tool_formats import TOOL_FORMATS
from deployments.chat.tools import ToolDialect
from deployments.openai.protocol import ChatCompletionBody
from grammar_workers import compile_grammar
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.deployments.tool_calls import generated, read, vocabulary

pytestmark = pytest.mark.anyio

TRIGGERS = sorted({one.trigger for one in TOOL_FORMATS.values()})
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Alice", *TRIGGERS]}, "parameters": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 2}
REGEX = r"[\[{<a-z]{1,9}"
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
CLOSED = {**CITY, "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CLOSED}} for name in ("look_up", "book")]
HELLO = [{"role": "user", "content": "hello"}]
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "schema": PERSON}},
    "list": {"response_format": {"type": "json_schema", "schema": LIST}},
    "regex": {"structured_outputs": {"regex": REGEX}},
}


def judged(name: str, content: str, calls: list[tuple[str, str]]) -> None:
    """Raises where an answer is neither valid calls nor a valid text."""
    if calls:
        assert not content
        for function, arguments in calls:
            assert function in ("look_up", "book")
            jsonschema.validate(json.loads(arguments), CLOSED)
    elif name == "regex":
        assert re.fullmatch(REGEX, content), content
    else:
        jsonschema.validate(json.loads(content), PERSON if name == "schema" else LIST)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_answers_are_calls_or_texts(name: Any, constraint: str, special: bool) -> None:
    """Random walks, also from the beginning of a call and of a text, read whole and in pieces."""
    offer = ChatCompletionBody.model_validate({"messages": HELLO, "tools": TOOLS, **CONSTRAINTS[constraint]}).offer()
    assert offer is not None and offer.text is not None
    dialect = ToolDialect(TOOL_FORMATS[name], by_template=False)
    fsm = compile_grammar(dialect.specification(offer), vocabulary(special=special))
    rng = random.Random(f"{name} {constraint} {special}")
    begin = dialect.text_begin(offer)
    last = [region.opens for region in TOOL_FORMATS[name].texts if region.last]
    text = f"{begin}{''.join(last)}{'{' if constraint == 'schema' else '['}"
    kinds = set()
    for prefix in ("", "", "", TOOL_FORMATS[name].trigger, text):
        answer = generated(fsm, rng, prefix, rng.randrange(10, 60))
        schemas = offer.schemas()
        content, calls = read(ToolCallParser(TOOL_FORMATS[name], schemas=schemas, text_begin=begin), [answer])
        assert (content, calls) == read(
            ToolCallParser(TOOL_FORMATS[name], schemas=schemas, text_begin=begin), list(answer)
        ), answer
        judged(constraint, content, calls)
        kinds.add(bool(calls))
    assert kinds == {False, True}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "tools": TOOLS, **CONSTRAINTS["schema"], **fields}


@pytest.mark.parametrize(
    "said", ['<call:look_up>{"city": "Rome"}</call><call:book>{"city": "Bonn"}</call>', '{"name": "<call:"}']
)
async def test_both_kinds_of_answers(http: httpx.AsyncClient, replica: FakeReplica, said: str) -> None:
    replica.say(*said)
    (choice,) = (await http.post("/v1/chat/completions", json=body())).json()["choices"]
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", ())
    ]
    judged("schema", choice["message"]["content"] or "", calls)
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop") and bool(calls) == said.startswith("<")
    text = (await http.post("/v1/chat/completions", json=body(stream=True))).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    content = "".join(one["delta"].get("content") or "" for chunk in chunks for one in chunk["choices"])
    assert content == (choice["message"]["content"] or "")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/responses",
            {
                "input": "hello",
                "tools": [{"type": "function", "name": "look_up", "parameters": CLOSED}],
                "text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}},
            },
        ),
        (
            "/v1/messages",
            {
                "model": "tiny",
                "max_tokens": 9,
                "messages": HELLO,
                "tools": [{"name": "look_up", "input_schema": CLOSED}],
                "output_config": {"format": {"type": "json_schema", "schema": PERSON}},
            },
        ),
    ],
)
async def test_the_other_paths_take_both_too(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica, path: str, fields: dict[str, Any]
) -> None:
    replica.say('{"name": "Alice"}')
    assert (await http.post(path, json=fields)).status_code == 200
    specification = compiler.calls[0][1]
    assert specification is not None and specification["format"]["type"] == "or"


@pytest.mark.parametrize(
    ("pointer", "param", "shown"),
    [
        ("/format/elements/1/specification/schema/properties/name/enum", "response_format", "/properties/name/enum"),
        (
            "/format/elements/0/tags/1/content/json_schema/properties/city",
            "tools",
            "/tools/1/function/parameters/properties/city",
        ),
    ],
)
async def test_errors_name_the_field_of_their_schema(
    http: httpx.AsyncClient, compiler: FakeCompiler, pointer: str, param: str, shown: str
) -> None:
    error = {"code": "unsupported_grammar", "message": "no", "pointer": pointer}
    compiler.answers = [{"status": "refused", "error": error}]
    detail = (await http.post("/v1/chat/completions", json=body())).json()["error"]
    assert (detail["param"], detail["pointer"]) == (param, shown)
