"""Custom tools of `/v1/responses`: their input matches a Lark grammar or a regular expression, in every format."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import httpx
import lark
import openai
import pytest

from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tool_formats import TOOL_FORMATS
from deployments.chat.tools import ToolDialect
from deployments.openai.responses.body import ResponsesBody
from grammar_workers import compile_grammar
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.deployments.tool_calls import generated, vocabulary

pytestmark = pytest.mark.anyio

LARK = r"""
start: block
block: "{" (word | block)* "}"
word: /[a-z]{1,3}/ | "</tool_call>" | "\"}\n"
"""
FLAT = r"""
start: "{" word* "}"
word: /[a-z]{1,3}/ | "</tool_call>" | "\"}\n"
"""
REGEX = r"[0-9]{1,3}(\}|</tool_call>|\n)*;"
GRAMMARS = {"lark": LARK, "flat": FLAT, "regex": REGEX}
JUDGES = {name: lark.Lark(GRAMMARS[name]) for name in ("lark", "flat")}


def tool(syntax: str, name: str = "run") -> dict[str, Any]:
    written = "regex" if syntax == "regex" else "lark"
    return {
        "type": "custom",
        "name": name,
        "format": {"type": "grammar", "syntax": written, "definition": GRAMMARS[syntax]},
    }


def judged(syntax: str, text: str) -> None:
    """Raises where the grammar does not describe the text."""
    if syntax in JUDGES:
        JUDGES[syntax].parse(text)
    else:
        assert re.fullmatch(REGEX, text), text


def read(parser: ToolCallParser, pieces: list[str]) -> tuple[str, str]:
    """Name and input of the one call."""
    name, given = "", ""
    for delta in (*(delta for piece in pieces for delta in parser.feed(piece)), *parser.finish(cut=False)):
        if "reasoning_content" in delta:
            continue
        (call,) = delta["tool_calls"]
        assert ("id" in call) == (not name)
        name, given = name or call["custom"]["name"], given + call["custom"]["input"]
    return name, given


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("syntax", ["lark", "flat", "regex"])
@pytest.mark.parametrize("name", [name for name, one in TOOL_FORMATS.items() if one.takes_text])
def test_inputs_match_their_grammar(name: Any, syntax: str, special: bool) -> None:
    """Random walks, read whole and in pieces; ends of calls are in the language."""
    other = "flat" if syntax == "regex" else "regex"
    tools = [tool(syntax), tool(other, "other")]
    chat = ResponsesBody.model_validate({"input": "x", "tools": tools, "tool_choice": "required"}).chat
    offer = chat.offer()
    assert offer is not None
    fsm = compile_grammar(
        ToolDialect(TOOL_FORMATS[name], by_template=False).specification(offer), vocabulary(special=special)
    )
    rng = random.Random(f"{name} {syntax}")
    for _ in range(4):
        text = generated(fsm, rng, "", rng.randrange(10, 60))
        called, given = read(ToolCallParser(TOOL_FORMATS[name], schemas=offer.schemas()), [text])
        assert (called, given) == read(ToolCallParser(TOOL_FORMATS[name], schemas=offer.schemas()), list(text)), text
        judged(syntax if called == "run" else other, given)


@pytest.mark.parametrize("name", [name for name, one in TOOL_FORMATS.items() if one.takes_text])
def test_white_space_at_the_start_of_an_input_is_kept(name: Any) -> None:
    offer = ResponsesBody.model_validate({"input": "x", "tools": [tool("regex")]}).chat.offer()
    assert offer is not None
    one = TOOL_FORMATS[name]
    text = f"{one.opens}{one.begin('run', 0, '0' * one.id_length)}\n 1{one.end}{one.closes}"
    for pieces in ([text], list(text)):
        assert read(ToolCallParser(one, schemas=offer.schemas()), pieces) == ("run", "\n 1")


async def test_the_package_reads_them(http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica) -> None:
    sends: Any = http
    client: Any = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=sends, max_retries=0)
    api = client.responses
    fields: Any = {"model": "tiny", "input": "hello", "tools": [tool("lark")]}
    said = "<call:run>{</call>}</call>"
    replica.say(*said)
    answer: Any = await api.create(**fields)
    (call,) = answer.output
    assert (call.type, call.name, call.input, call.status) == ("custom_tool_call", "run", "{</call>}", "completed")
    specification = compiler.calls[0][1]
    assert specification is not None and specification["format"]["tags"][0]["content"]["elements"][0] == {
        "type": "specification",
        "specification": {"type": "grammar", "syntax": "lark", "text": LARK},
    }
    async with api.stream(**fields) as stream:
        events = [event async for event in stream]
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert "".join(pieces) == done.input == call.input and len(pieces) > 1
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "fine"}
    await api.create(**{**fields, "input": [{"role": "user", "content": "hello"}, call, result]})
    assert "fine" in json.dumps(replica.requests[-1]["messages"])


async def test_a_format_that_cannot_hold_text_says_so(compiler: FakeCompiler, replica: FakeReplica) -> None:
    name = next(name for name, one in TOOL_FORMATS.items() if not one.takes_text)
    async with client_of(application(compiler, replica, tool_format=name)) as http:
        response = await http.post("/v1/responses", json={"input": "x", "tools": [tool("regex")]})
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools[0]"


async def test_a_bad_grammar_is_refused_at_its_tool(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    pointer = "/format/tags/0/content/elements/0/specification/text"
    compiler.answers = [
        {"status": "refused", "error": {"code": "invalid_grammar", "message": "no", "pointer": pointer}}
    ]
    error = (await http.post("/v1/responses", json={"input": "x", "tools": [tool("lark")]})).json()["error"]
    assert error["param"] == "tools" and error["pointer"].startswith("/tools/0")
