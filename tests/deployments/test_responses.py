"""`/v1/responses` over fake tiers, read by the OpenAI client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pydantic
import pytest

from deployments.openai.responses.answer import Response
from tests.deployments.fakes import FakeCompiler, FakeReplica

pytestmark = pytest.mark.anyio


class Answer(pydantic.BaseModel):
    a: int


SCHEMA = Answer.model_json_schema()
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
CALL = '<call:f>{"a": 1}</call>'


@pytest.fixture
def client(http: httpx.AsyncClient) -> Any:
    return openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=http).responses


def thoughtful(replica: FakeReplica) -> None:
    replica.chat_template, replica.generation_prompt = "</think>", "<think>\n"


async def test_text(client: Any, replica: FakeReplica) -> None:
    answer = await client.create(model="tiny", input="hello", instructions="Be brief.", metadata={"k": "v"})
    assert answer.output_text == "0 1 2 3 4 " and answer.status == "completed" and answer.metadata == {"k": "v"}
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (3, 5, 8)
    assert replica.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


async def test_a_schema_is_enforced_and_parsed(client: Any, compiler: FakeCompiler, replica: FakeReplica) -> None:
    replica.say('{"a": ', "7}")
    answer = await client.parse(model="tiny", input="hello", text_format=Answer)
    assert answer.output_parsed == Answer(a=7)
    specification = compiler.calls[0][1]
    assert specification is not None and specification["schema"]["properties"]["a"]["type"] == "integer"
    whole = await client.create(model="tiny", input="x", text={"format": {"type": "regex", "pattern": "[a-z]+"}})
    assert compiler.calls[1][1] == {"type": "regex", "pattern": "[a-z]+"} and whole.grammar["applies_to"] == "output"


async def test_a_stream_tells_the_same_as_the_whole_answer(
    client: Any, http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    thoughtful(replica)
    replica.say("Hm", "m.\n</think>\n\nLook", ": ", CALL[:12], CALL[12:])
    fields: dict[str, Any] = {"input": "hello", "tools": [TOOL]}
    headers = {"x-request-id": "mine"}
    whole = (await http.post("/v1/responses", json=fields, headers=headers)).json()
    Response.model_validate(whole)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    async with client.stream(model="tiny", extra_headers=headers, **fields) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    plain = Response.model_validate(final.to_dict()).model_dump()
    assert plain["output"] == Response.model_validate(whole).model_dump()["output"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert ("".join(thoughts), "".join(texts), "".join(arguments)) == ("Hmm.", "Look:", '{"a": 1}')


async def test_a_conversation_goes_on(client: Any, replica: FakeReplica) -> None:
    thoughtful(replica)
    replica.say("Hm.\n</think>\n\nLook.", CALL)
    first = await client.create(model="tiny", input="hello", tools=[TOOL])
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = [{"role": "user", "content": "hello"}, *first.output, result]
    await client.create(model="tiny", input=again, tools=[TOOL], tool_choice="none")
    user, turn, output = replica.requests[1]["messages"]
    assert user == {"role": "user", "content": "hello"}
    assert "Look." in turn["content"] and CALL in turn["content"] and turn["role"] == "assistant"
    assert output["content"] == "f returned: sunny"


ONLY_G = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}


async def test_only_allowed_tools_may_be_called(client: Any, replica: FakeReplica) -> None:
    replica.say(CALL.replace(":f>", ":g>"))
    tools = [TOOL, {**TOOL, "name": "g"}]
    answer = await client.create(model="tiny", input="hello", tools=tools, tool_choice=ONLY_G)
    assert answer.output[-1].name == "g" and answer.tool_choice.mode == "required"
    (request,) = replica.requests
    (tag,) = request["grammar"]["specification"]["format"]["tags"]
    assert tag["begin"] == "<call:g>" and '"name": "f"' in request["messages"][0]["content"]


async def test_an_answer_that_was_cut_is_incomplete(client: Any, replica: FakeReplica) -> None:
    replica.finish_reason = "length"
    answer = await client.create(model="tiny", input="hello", max_output_tokens=5)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert replica.requests[0]["sampling"]["max_tokens"] == 5


async def test_a_fault_after_the_first_event(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(2, ValueError("secret"))]
    text = (await http.post("/v1/responses", json={"input": "x", "stream": True})).text
    last = json.loads(text.strip().rsplit("data: ", 1)[1])
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed" and "secret" not in text
    replica.faults = [(2, ValueError("secret"))]
    assert (await http.post("/v1/responses", json={"input": "x"})).status_code == 500


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]},
            "input[0].content[0].type",
        ),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": ONLY_G}, "tool_choice.tools[0]"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.AsyncClient, replica: FakeReplica, fields: dict[str, Any], param: str
) -> None:
    response = await http.post("/v1/responses", json={"input": "x", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param) and not replica.requests


async def test_errors_point_into_this_body(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    error = {
        "code": "unsupported_grammar",
        "message": "no",
        "pointer": "/format/tags/0/content/json_schema/properties/a",
    }
    compiler.answers = [{"status": "refused", "error": error}]
    detail = (await http.post("/v1/responses", json={"input": "x", "tools": [TOOL]})).json()["error"]
    assert detail["pointer"] == "/tools/0/parameters/properties/a" and detail["pointer"] in detail["message"]
    error["pointer"] = "/properties/a"
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    detail = (await http.post("/v1/responses", json={"input": "x", "text": text})).json()["error"]
    assert (detail["param"], detail["pointer"]) == ("text.format", "/properties/a")


async def test_log_probabilities(client: Any, replica: FakeReplica) -> None:
    generate = replica.generate

    async def with_reports(request: Any, *, options: Any) -> Any:
        async for event in generate(request, options=options):
            text = event["text"]
            told = {"text": text, "bytes": list(text.encode()), "logprob": -0.5, "top": []}
            yield {**event, "reports": [told]} if text else event

    replica.generate = with_reports  # type: ignore[method-assign]
    for fields in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}):
        answer = await client.create(model="tiny", input="hello", **fields)
        assert [one.token for one in answer.output[0].content[0].logprobs] == [f"{n} " for n in range(5)]
        assert replica.requests[-1]["sampling"]["logprobs"] == fields.get("top_logprobs", 0)
    async with client.stream(model="tiny", input="hello", top_logprobs=2) as stream:
        events = [event async for event in stream]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert all(one.logprobs[0].token == one.delta for one in deltas) and len(deltas) == 5


async def test_settings_of_chat_completions(client: Any, replica: FakeReplica, compiler: FakeCompiler) -> None:
    fields: dict[str, Any] = {"top_k": 3, "seed": 5, "stop": ["x"], "structured_outputs": {"regex": "[a-z]+"}}
    fields["finish_within_budget"] = True
    await client.create(model="tiny", input="hello", extra_body=fields)
    sampling = replica.requests[0]["sampling"]
    assert (sampling["top_k"], sampling["seed"], sampling["stop"]) == (3, 5, ["x"])
    assert sampling["finish_within_budget"] is True
    assert compiler.calls[0][1] == {"type": "regex", "pattern": "[a-z]+"}


async def test_the_oldest_items_are_dropped_where_the_client_wants_it(
    http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    error = {"status": 400, "message": "prompt is too long", "param": "messages", "code": "context_length_exceeded"}
    replica.faults = [(0, error), (0, error), None]
    texts = [str(number) for number in range(9)]
    body = {"input": [{"role": "user", "content": text} for text in texts], "instructions": "Be brief."}
    answer = await http.post("/v1/responses", json={**body, "truncation": "auto"})
    assert answer.status_code == 200 and answer.json()["truncation"] == "auto"
    kept = [message["content"] for message in replica.requests[-1]["messages"]]
    assert kept == ["Be brief.", *texts[-(len(kept) - 1) :]] and len(replica.requests) == 3
    replica.faults = [(0, error)] * 9
    for fields in ({}, {"truncation": "auto"}):
        refused = (await http.post("/v1/responses", json={**body, **fields})).json()["error"]
        assert (refused["code"], refused["param"]) == ("context_length_exceeded", "input")
