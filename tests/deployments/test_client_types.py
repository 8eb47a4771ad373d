"""Answers and streamed events against the types of the package `openai`, strictly; and fields that OpenAI omits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.deployments.fakes import FakeReplica

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "f", "parameters": SCHEMA}
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ANSWERS = [["Look", " here"], ["Look: ", '<call:f>{"a": ', "1}</call>"], ["Hm.\n</think>\n\n", "Yes", '<call:f>{"a']]
OFFERED: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**HELLO, **OFFERED, "n": 2}),
    "schema": (CHAT, {**HELLO, "response_format": {"type": "json_schema", "schema": SCHEMA}}),
    "text": (TEXT, {"prompt": "hello"}),
    "responses": (RESPONSES, {"input": "hello", "tools": [{"type": "function", **FUNCTION}]}),
    "messages": (
        MESSAGES,
        {**HELLO, "model": "tiny", "max_tokens": 9, "tools": [{"name": "f", "input_schema": SCHEMA}]},
    ),
}
KINDS: dict[str, tuple[Any, Any]] = {
    CHAT: (ChatCompletion, ChatCompletionChunk),
    TEXT: (Completion, Completion),
    RESPONSES: (Response, None),
}
EVENTS = {get_args(one.model_fields["type"].annotation)[0]: one for one in get_args(get_args(ResponseStreamEvent)[0])}
"""Those of `/v1/responses`, by their type."""
NULLS = {
    CHAT: {"finish_reason", "logprobs", "content", "usage", "grammar_start"},
    TEXT: {"finish_reason", "logprobs", "usage"},
    RESPONSES: {
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "previous_response_id",
        "usage",
        "user",
    },
    MESSAGES: {"stop_reason", "stop_sequence"},
}
"""Fields in which the original API sends null, too; clients need not take it in any other."""


def nulls(value: Any) -> Iterator[str]:
    """Names of the fields that are null."""
    if isinstance(value, dict):
        yield from (name for name, inner in value.items() if inner is None)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nulls(inner)


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("texts", ANSWERS, ids=["text", "call", "cut call behind thoughts"])
@pytest.mark.parametrize("name", BODIES)
async def test_answers_are_as_the_package_types_them(
    http: httpx.AsyncClient, replica: FakeReplica, name: str, texts: list[str], reason: str
) -> None:
    path, body = BODIES[name]
    if "</think>" in "".join(texts):
        replica.chat_template, replica.generation_prompt = "</think>", "<think>\n"
    replica.say(*texts)
    replica.finish_reason = reason
    whole = (await http.post(path, json=body)).json()
    lines = (await http.post(path, json={**body, "stream": True})).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    assert events and whole.get("error") is None
    for told in (whole, *events):
        assert set(nulls(told)) <= NULLS[path], told
    if path in KINDS:
        answer, event = KINDS[path]
        TypeAdapter(answer).validate_json(json.dumps(whole), strict=True)
        for told in events:
            if path == TEXT:  # the package types all chunks as it does the last one
                told["choices"][0]["finish_reason"] = told["choices"][0]["finish_reason"] or "stop"
            kind: Any = event or EVENTS[told["type"]]
            TypeAdapter(kind).validate_json(json.dumps(told), strict=True)


async def test_a_failed_stream_is_as_the_package_types_it(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(2, {"status": 408, "message": "too slow", "code": "deadline_exceeded"})]
    text = (await http.post(RESPONSES, json={"input": "hello", "stream": True})).text
    last = json.loads(text.strip().splitlines()[-1].removeprefix("data: "))
    TypeAdapter(EVENTS["response.failed"]).validate_json(json.dumps(last), strict=True)


@pytest.mark.parametrize("name", BODIES)
async def test_lines_of_a_stream_end_where_json_ends(http: httpx.AsyncClient, replica: FakeReplica, name: str) -> None:
    """Clients split them as `str.splitlines` does, at characters that JSON allows in strings."""
    path, body = BODIES[name]
    said = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\r\nj"
    replica.say(said, "<call:", 'f>{"a": "' + said + '"}</call>')
    response = await http.post(path, json={**body, "stream": True})
    assert response.text.splitlines() == response.text.removesuffix("\n").split("\n")
    for line in response.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            json.loads(line[6:])
    assert "\\u2028" in response.text
