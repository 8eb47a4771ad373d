"""`/v1/messages` over fake tiers. `tests/compat` has Anthropic's own client against a running server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from deployments.anthropic.answer import MessageAnswer
from deployments.http.tenants import ApiKey, Tenants
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"name": "f", "description": "Does it.", "input_schema": SCHEMA}
CALL = '<call:f>{"a": 1}</call>'
HELLO = [{"role": "user", "content": "hello"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 50, "messages": HELLO, **fields}


async def message(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/v1/messages", json=body(**fields))
    assert answer.status_code == 200, answer.text
    MessageAnswer.model_validate(answer.json())
    return dict(answer.json())


async def refusal(http: httpx.AsyncClient, status: int = 400, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/v1/messages", json=body(**fields))
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert told["type"] == "error" and told["error"]["type"] and told["error"]["message"]
    return dict(told["error"])


async def events(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their data."""
    answer = await http.post("/v1/messages", json=body(stream=True, **fields))
    told = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    return told


async def test_text(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    answer = await message(http, system=[{"type": "text", "text": "Be brief."}], top_k=3, metadata={"user_id": "u"})
    assert answer["content"] == [{"type": "text", "text": "0 1 2 3 4 "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"] == {"input_tokens": 3, "output_tokens": 5}
    assert answer["id"].startswith("msg_") and answer["role"] == "assistant" and answer["model"] == "tiny"
    (request,) = replica.requests
    assert request["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert request["sampling"]["top_k"] == 3 and request["sampling"]["max_tokens"] == 50


@pytest.mark.parametrize("field", ["output_config", "output_format"])
async def test_a_schema_is_enforced(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica, field: str
) -> None:
    wanted: Any = {"type": "json_schema", "schema": SCHEMA}
    replica.say('{"a": ', "7}")
    answer = await message(http, **{field: wanted if field == "output_format" else {"format": wanted}})
    assert answer["content"][0]["text"] == '{"a": 7}' and answer["grammar"]["applies_to"] == "output"
    assert compiler.calls[0][1] == {"type": "json_schema", "schema": SCHEMA}


async def test_blocks_become_messages(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "it?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "f", "input": {"a": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}],
                },
                {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    replica.chat_template = '{{ tools }} {{ reasoning_content }} <tool_call> "arguments": '
    await message(http, messages=conversation, tools=[TOOL])
    user, assistant, first, second, last = replica.requests[0]["messages"]
    assert user == {"role": "user", "content": "What is it?"}
    assert assistant["content"] == "I look." and assistant["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [{"a": 1}, {"a": 2}]
    assert (first["tool_call_id"], first["content"], first["name"]) == ("t1", "one", "f")
    assert (second["tool_call_id"], second["content"]) == ("t2", "Error: no")
    assert last == {"role": "user", "content": "Well?"}


@pytest.mark.parametrize(
    ("choice", "demanded"),
    [
        ({"type": "auto"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "f"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False),
    ],
)
async def test_calls(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica, choice: Any, demanded: bool
) -> None:
    replica.say(*(("",) if demanded else ("Look: ",)), CALL[:12], CALL[12:])
    answer = await message(http, tools=[TOOL], tool_choice=choice)
    *texts, call = answer["content"]
    assert [text["text"] for text in texts] == ([] if demanded else ["Look:"])
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"a": 1}) and call["id"]
    assert answer["stop_reason"] == "tool_use"
    assert len(compiler.calls) == 1


async def test_no_tools_are_offered_where_none_may_be_called(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    answer = await message(http, tools=[TOOL], tool_choice={"type": "none"})
    assert answer["stop_reason"] == "end_turn" and not replica.requests[0].get("tools")


@pytest.mark.parametrize("end", range(len("<call:f>"), CALL.index("}") + 1))
async def test_a_call_that_was_cut_is_told_so_far(http: httpx.AsyncClient, replica: FakeReplica, end: int) -> None:
    replica.say("Look: ", CALL[:end])
    replica.finish_reason = "length"
    answer = await message(http, tools=[TOOL])
    kinds = ["text"] if end == len("<call:f>") else ["text", "tool_use"]
    assert [part["type"] for part in answer["content"]] == kinds and answer["stop_reason"] == "max_tokens"
    assert answer["content"][-1].get("input", {}) in ({}, {"a": 1})
    replica.say("Look: ", CALL[:end])
    told = await events(http, tools=[TOOL])
    assert told[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    if end == len("<call:f>"):  # without any argument a call would look like one that takes none
        assert "tool_use" not in [event.get("content_block", {}).get("type") for event in told]


async def test_a_stop_sequence_is_named(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.say("So ", "far.", stop_string="END")
    answer = await message(http, stop_sequences=["END", "FIN"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
    assert replica.requests[0]["sampling"]["stop"] == ["END", "FIN"]


async def test_a_stream_tells_the_same_as_the_whole_answer(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.chat_template, replica.generation_prompt = "</think>", "<think>\n"
    said = ("Hm", "m.\n</think>\n\nLook", ": ", CALL[:12], CALL[12:])
    fields: dict[str, Any] = {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    replica.say(*said)
    whole = await message(http, **fields)
    replica.say(*said)
    told = await events(http, **fields)
    assert told[0]["type"] == "message_start" and told[0]["message"]["content"] == []
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    assert told[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
    assert told[-2]["usage"] == whole["usage"]
    blocks: list[dict[str, Any]] = []
    for event in told[1:-2]:
        assert event["index"] == len(blocks) - (event["type"] != "content_block_start")
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            kind = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}
            name = kind.get(delta["type"], "signature")
            blocks[-1][name] += delta.get(name, delta.get("partial_json", ""))
    for block in blocks:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
            block["id"] = whole["content"][-1]["id"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"] and blocks == whole["content"]


async def test_a_fault_after_the_first_event_is_an_event(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(1, {"status": 400, "message": "too long", "code": "invalid_value"})]
    told = await events(http)
    assert told[0]["type"] == "message_start" and told[-1]["type"] == "error"
    assert told[-1]["error"]["type"] == "invalid_request_error"


async def test_counting_checks_as_answering_does(http: httpx.AsyncClient) -> None:
    fields = {"model": "tiny", "messages": HELLO, "system": "Be brief.", "tools": [TOOL]}
    wrong = await http.post("/v1/messages/count_tokens", json={**fields, "model": "other"})
    assert wrong.status_code == 404 and wrong.json()["error"]["type"] == "not_found_error"


FORMAT = {"type": "json_schema", "schema": SCHEMA}
CALLED = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "must end with the user"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "blocks of the type `image` are not supported"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "`bash_20250124` is a tool that Anthropic runs"),
        ({"tools": [TOOL, TOOL]}, "two functions of one name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"container": "c"}, "container"),
        ({"temperature": 2}, "temperature"),
        ({"unknown": 1}, "unknown"),
        ({"output_format": FORMAT, "structured_outputs": {"regex": "a"}}, "`structured_outputs`: does not go with"),
        ({"messages": [{"role": "user", "content": [CALLED]}]}, "`messages[0].content[0]`: belongs to the assistant"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}, *HELLO]}, "content[0]`: belongs to the user"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 1}}}, "output_config.format.schema"),
    ],
)
async def test_refusals_are_in_anthropics_words(http: httpx.AsyncClient, fields: Any, said: str) -> None:
    error = await refusal(http, **fields)
    assert error["type"] == "invalid_request_error" and said in error["message"], error


async def test_other_statuses_have_types_of_their_own(http: httpx.AsyncClient) -> None:
    assert (await refusal(http, 404, model="other"))["type"] == "not_found_error"
    wrong = await http.post("/v1/messages", content="{")
    assert wrong.json()["type"] == "error"
    elsewhere = await http.post("/v1/chat/completions", json={"messages": []})
    assert "type" not in elsewhere.json()


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_and_errors_name_the_request(http: httpx.AsyncClient, replica: FakeReplica, stream: bool) -> None:
    sent = {"x-request-id": "mine-1"}
    answer = await http.post("/v1/messages", json=body(stream=stream), headers=sent)
    assert answer.headers["request-id"] == "mine-1" and '"msg_mine-1"' in answer.text
    wrong = await http.post("/v1/messages", json=body(stream=stream, model="other"), headers=sent)
    assert wrong.headers["request-id"] == wrong.json()["request_id"] == "mine-1"
    invalid = await http.post("/v1/messages", json=body(stream=stream), headers={"x-request-id": "not this"})
    assert invalid.status_code == 400 and invalid.json()["request_id"] is None
    replica.faults = [(1, {"status": 400, "message": "too long", "code": "invalid_value"})]
    broken = await http.post("/v1/messages", json=body(stream=stream), headers=sent)
    assert broken.text.count('"request_id":"mine-1"') == 1


async def test_keys_come_in_a_header_of_their_own(compiler: FakeCompiler, replica: FakeReplica) -> None:
    keys = Tenants([ApiKey(tenant="t", sha256="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae")])
    async with client_of(application(compiler, replica, tenants=keys)) as http:
        for headers, status in (({}, 401), ({"x-api-key": "bar"}, 401), ({"x-api-key": "foo"}, 200)):
            answer = await http.post("/v1/messages", json=body(), headers=headers)
            assert answer.status_code == status
            if status == 401:
                assert answer.json()["error"]["type"] == "authentication_error"
