"""What is not enforced, in answers: as errors name places, in the header, and at the end of a stream."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from deployments.arguments import AppArguments
from deployments.http.unenforced import HEADER
from grammar_workers import GrammarOptions, compile_grammar, grammar_key
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import ARTIFACT, FINGERPRINT, FakeCompiler, FakeReplica
from tests.grammar_workers.vocabularies import bytes_vocabulary

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "string", "pattern": r"(a)\1"}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"é": SCHEMA}}}}
REPORT = {"on_unsupported": "report"}


def names(compiler: FakeCompiler, *pointers: str) -> None:
    """What the compiler answers."""
    unenforced = [{"pointer": pointer, "reason": "why"} for pointer in pointers]
    compiler.answers[0] = {"status": "ready", "source": "compiled", "notes": [], "unenforced": unenforced}


def told(param: str, *pointers: str) -> list[dict[str, str]]:
    return [{"param": param, "pointer": pointer, "reason": "why"} for pointer in pointers]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_the_option_reaches_both_tiers(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    names(compiler, "/pattern")
    answer = await http.post("/v1/completions", json={"prompt": "x", "response_format": FORMAT, **REPORT})
    asked = {"specification": {"type": "json_schema", "schema": SCHEMA}, "options": REPORT}
    key = grammar_key(asked["specification"], FINGERPRINT, GrammarOptions(on_unsupported="report"))
    assert compiler.calls[0][:2] == (key, asked)
    assert replica.requests[0]["grammar"] == {
        "key": key,
        "specification": asked,
        "tenant": "anonymous",
        "artifact": ARTIFACT,
    }
    assert answer.json()["grammar"]["unenforced"] == told("response_format", "/pattern")
    assert answer.headers[HEADER] == "/pattern"


async def test_what_the_server_does_anyway_changes_nothing(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    for option in ({}, {"on_unsupported": "reject"}):
        answer = await http.post("/v1/completions", json={"prompt": "x", "response_format": FORMAT, **option})
        assert HEADER not in answer.headers and answer.json()["grammar"]["unenforced"] == []
    assert compiler.calls[0][:2] == compiler.calls[1][:2]
    assert compiler.calls[0][1] == {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("choices", [1, 2])
async def test_a_stream_says_it_first_and_last(
    http: httpx.AsyncClient, compiler: FakeCompiler, usage: bool, choices: int
) -> None:
    names(compiler, "/pattern")
    body = {"messages": HELLO, "response_format": FORMAT, "stream": True, "n": choices, **REPORT}
    answer = await http.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": usage}})
    assert answer.headers[HEADER] == "/pattern"
    chunks = [chunk for chunk in events(answer) if chunk["choices"]]
    assert ["grammar" in chunk for chunk in chunks] == [True, *[False] * (len(chunks) - 2), True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["grammar"]["unenforced"] == told("response_format", "/pattern")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (
            "/v1/chat/completions",
            {"messages": HELLO, "tools": [TOOL], "tool_choice": "required"},
            ("tools", "/tools/0/function/parameters/properties/é/pattern"),
        ),
        (
            "/v1/responses",
            {"input": "x", "tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required"},
            ("tools", "/tools/0/parameters/properties/é/pattern"),
        ),
        (
            "/v1/messages",
            {"model": "tiny", "max_tokens": 9, "messages": HELLO, "tool_choice": {"type": "any"}}
            | {"tools": [{"name": "f", "input_schema": TOOL["function"]["parameters"]}]},
            ("tools", "/tools/0/input_schema/properties/é/pattern"),
        ),
        ("/v1/responses", {"input": "x", "text": {"format": {"name": "n", **FORMAT}}}, ("text.format", "/pattern")),
        (
            "/v1/messages",
            {"model": "tiny", "max_tokens": 9, "messages": HELLO, "output_config": {"format": FORMAT}},
            ("output_config.format", "/pattern"),
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_places_are_those_of_the_body(
    compiler: FakeCompiler, replica: FakeReplica, path: str, body: dict[str, Any], named: tuple[str, str], stream: bool
) -> None:
    async with client_of(application(compiler, replica, tool_format="hermes")) as http:
        await http.post(path, json={**body, **REPORT})
        asked = compiler.calls[0][1]
        options = GrammarOptions.model_validate(asked["options"])
        (found,) = compile_grammar(asked["specification"], bytes_vocabulary(), options=options).unenforced
        names(compiler, found["pointer"])
        answer = await http.post(path, json={**body, **REPORT, "stream": stream})
    assert answer.status_code == 200, answer.text
    last = _last(events(answer)) if stream else answer.json()
    assert last["grammar"]["unenforced"] == told(*named)
    assert unquote(answer.headers[HEADER]) == named[1] and answer.headers[HEADER].isascii()


def _last(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last event that says anything of the whole answer."""
    last = [event for event in events if event.get("type") != "message_stop"][-1]
    return last.get("response", last)


async def test_a_long_header_says_how_many_more(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    pointers = [f"/properties/a, {number}\r\né/pattern" for number in range(500)]
    names(compiler, *pointers)
    body = {"prompt": "x", "response_format": FORMAT, **REPORT}
    answer = await http.post("/v1/completions", json=body)
    *shown, more = answer.headers[HEADER].split(", ")
    assert [unquote(pointer) for pointer in shown] == pointers[: len(shown)]
    assert more == f"+{500 - len(shown)}" and len(answer.headers[HEADER]) < 2100
    assert len(answer.json()["grammar"]["unenforced"]) == 500


async def test_compiling_ahead(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    names(compiler, "/pattern")
    answer = await http.post("/v1/grammars", json={"response_format": FORMAT, **REPORT})
    assert answer.json()["unenforced"] == told("response_format", "/pattern")
    assert answer.headers[HEADER] == "/pattern"
    assert compiler.calls[0][1]["options"] == REPORT


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", **REPORT},
        {"prompt": "x", "structured_outputs": {"key": "0" * 64}, **REPORT},
        {"prompt": "x", "structured_outputs": {"key": "0" * 64}, "on_unsupported": "reject"},
        {"prompt": "x", "response_format": FORMAT, "on_unsupported": "ignore"},
    ],
)
async def test_what_makes_no_sense(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "on_unsupported")


async def test_a_server_may_forbid_it(compiler: FakeCompiler, replica: FakeReplica) -> None:
    async with client_of(application(compiler, replica, allow_unenforced=False)) as http:
        bodies = {"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": {"messages": HELLO}, "/v1/grammars": {}}
        for path, body in bodies.items():
            asked = {**body, "response_format": FORMAT}
            error = (await http.post(path, json={**asked, **REPORT})).json()["error"]
            assert (error["param"], error["code"]) == ("on_unsupported", "unenforced_not_allowed")
            assert "router.allow_unenforced" in error["message"]
            assert (await http.post(path, json={**asked, "on_unsupported": "reject"})).status_code == 200


def test_a_config_must_not_contradict_itself() -> None:
    with pytest.raises(ValueError, match=r"router\.allow_unenforced"):
        AppArguments.model_validate(
            {"model": "m", "router": {"allow_unenforced": False}, "compiler": {"options": REPORT}}
        )
