"""Fields that clients send for other servers, and messages as client packages send them back."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai
import pydantic
import pytest

from deployments.anthropic.body import MessagesBody
from deployments.http.client_fields import IGNORED, RENAMED
from deployments.openai.responses.body import ResponsesBody
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.documents import REPOSITORY

pytestmark = pytest.mark.anyio

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GRAMMARS = "/v1/grammars"
HELLO = [{"role": "user", "content": "hello"}]
CALL: dict[str, Any] = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    RESPONSES: {"input": "hello"},
    GRAMMARS: {},
    MESSAGES: {"messages": HELLO, "model": "tiny", "max_tokens": 9},
}
CACHE = {"cache_control": {"type": "ephemeral"}}


class Answer(pydantic.BaseModel):
    a: int


def assistant(**fields: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": "assistant", "content": "hi", **fields}, *HELLO]}


def items(*items: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "hello"}, *items]}


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, assistant(parsed={"a": 1}, reasoning="hm", reasoning_details=[{"text": "hm"}], id="x", images=[1])),
    (CHAT, assistant(thinking_blocks=[{"type": "thinking"}], provider_specific_fields={"a": 1}, annotations=[1])),
    (CHAT, assistant(content=None, refusal="No.")),
    (CHAT, assistant(content=[{"type": "refusal", "refusal": "No."}])),
    (CHAT, assistant(content=[{"type": "text", "text": "x", **CACHE}], **CACHE)),
    (CHAT, assistant(tool_calls=[{**CALL, "index": 0, "extra_content": {"google": {}}, **CACHE}])),
    (CHAT, assistant(tool_calls=[{**CALL, "function": {**CALL["function"], "parsed_arguments": {}}}])),
    (CHAT, assistant(unknown=None, other=[])),
    (CHAT, {"tools": [{"type": "function", "function": FUNCTION, **CACHE}]}),
    (CHAT, {"tool_choice": "auto"}),
    (CHAT, {"tool_choice": "auto", "tools": []}),
    (CHAT, {"tool_choice": "none", "tools": None}),
    (CHAT, {"store": True, "service_tier": "flex", "verbosity": "low", "context_management": {"edits": []}}),
    (CHAT, {"stream_options": {"include_usage": True}}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
    (RESPONSES, {"tool_choice": "auto", "tools": []}),
    (
        RESPONSES,
        {"client_metadata": {"a": "b"}, "prompt_cache_retention": "24h", "service_tier": "flex", "store": True},
    ),
    (RESPONSES, {"include": ["message.output_text.logprobs"], "text": {"verbosity": "low"}}),
    (RESPONSES, items({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})),
    (RESPONSES, items({"role": "assistant", "content": [{"type": "output_text", "text": "x", "parsed": {"a": 1}}]})),
    (
        RESPONSES,
        items(
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a', "namespace": None}
            | {"caller": {"type": "direct"}, "async_": False, "parsed_arguments": None},
            {"type": "function_call_output", "call_id": "d", "output": "x"},
        ),
    ),
    (MESSAGES, {"top_k": 0, "service_tier": "auto", "context_management": {"edits": []}, **CACHE}),
    (MESSAGES, {"messages": [*HELLO, {"role": "assistant", "content": []}]}),
    (MESSAGES, {"messages": [*HELLO, {"role": "assistant", "content": ""}, *HELLO]}),
    (
        MESSAGES,
        {
            "messages": [
                *HELLO,
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "x", "parsed_output": {}, "citations": [1]}],
                },
                *HELLO,
            ]
        },
    ),
]


@pytest.mark.parametrize(("path", "fields"), ACCEPTED)
async def test_what_clients_send_is_taken(http: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> None:
    response = await http.post(path, json={**WHOLE[path], **fields})
    assert response.status_code == 200, response.text


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {name: "x"}, name, instead) for name, instead in RENAMED["a request"].items()
]
REFUSED += [(RESPONSES, {name: "x"}, name, instead) for name, instead in RENAMED["a request of /v1/responses"].items()]
REFUSED += [(GRAMMARS, {name: "x"}, name, instead) for name, instead in RENAMED["a body of /v1/grammars"].items()]
REFUSED += [(MESSAGES, {name: "x"}, name, instead) for name, instead in RENAMED["a request of /v1/messages"].items()]
REFUSED += [
    (CHAT, {"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "json_schema"),
    (CHAT, {"tools": [{"type": "function", **FUNCTION}]}, "tools[0].name", "`name` inside of `function`"),
    (RESPONSES, {"tools": [{"type": "function", "function": FUNCTION}]}, "tools[0].function", "beside `type`"),
    (MESSAGES, {"tools": [FUNCTION]}, "tools[0].parameters", "input_schema"),
    (CHAT, {"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x", ""),
    (CHAT, {"reasoning_effort": "low"}, "reasoning_effort", ""),
    (CHAT, {"tool_choice": "required", "tools": []}, "tool_choice", "tools"),
    (
        CHAT,
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "",
    ),
    (RESPONSES, {"reasoning": {"effort": "low"}}, "reasoning.effort", ""),
    (
        RESPONSES,
        items(*[{"type": "function_call", "call_id": str(n), "name": "f", "arguments": "{}"} for n in range(129)]),
        "input[1]",
        "at most 128",
    ),
]


@pytest.mark.parametrize(("path", "fields", "param", "instead"), REFUSED)
async def test_what_would_change_the_output_is_refused_by_name(
    http: httpx.AsyncClient, replica: FakeReplica, path: str, fields: dict[str, Any], param: str, instead: str
) -> None:
    response = await http.post(path, json={**WHOLE[path], **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), response.text
    assert instead in error["message"] and not replica.requests


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"instructions": "x", "input": [{"role": "user", "content": "x"}] * 4096}),
        (MESSAGES, {"system": "x", "messages": [{"role": "user", "content": "x"}] * 4096}),
    ],
)
async def test_the_system_message_takes_no_place(http: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> None:
    short = {name: value[:1000] if isinstance(value, list) else value for name, value in fields.items()}
    assert (await http.post(path, json={**WHOLE[path], **short})).status_code == 200
    model: Any = ResponsesBody if path == RESPONSES else MessagesBody
    assert len(model.model_validate({**WHOLE[path], **fields}).chat.messages) == 4097


async def test_answers_of_the_package_can_be_sent_back(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    """As its helpers return them: parsed, streamed, and cut."""
    sends: Any = http
    api: Any = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=sends, max_retries=0)
    schema: Any = {
        "type": "function",
        "function": {"name": "f", "parameters": Answer.model_json_schema(), "strict": True},
    }
    for said in ('{"a": 7}', '<call:f>{"a": 1}</call>', '<call:f>{"a": 1'):
        called = said.startswith("<")
        replica.say(*said)
        fields: Any = {"tools": [schema]} if called else {"response_format": Answer}
        messages: list[Any] = [*HELLO]
        if said.endswith("}") or called is False:
            async with api.chat.completions.stream(model="tiny", messages=messages, **fields) as stream:
                streamed = (await stream.get_final_completion()).choices[0].message
            messages += [
                (await api.chat.completions.parse(model="tiny", messages=messages, **fields)).choices[0].message
            ]
        else:
            replica.finish_reason = "length"
            streamed = (await api.chat.completions.create(model="tiny", messages=messages, **fields)).choices[0].message
        for one in (streamed, *messages[1:]):
            for sent in (one, one.model_dump(), one.to_dict()):
                results = [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in one.tool_calls or ()]
                await api.chat.completions.create(model="tiny", messages=[*HELLO, sent, *results, *HELLO])
        replica.finish_reason = "stop"


async def test_items_of_the_package_can_be_sent_back(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    sends: Any = http
    api: Any = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=sends, max_retries=0)
    tool: Any = {"type": "function", "name": "f", "parameters": Answer.model_json_schema(), "strict": True}
    for said in ('{"a": 7}', '<call:f>{"a": 1}</call>', '<call:f>{"a": 1'):
        called = said.startswith("<")
        replica.say(*said)
        replica.finish_reason = "stop" if said.endswith(("}", ">")) and said != '<call:f>{"a": 1' else "length"
        fields: Any = {"tools": [tool]} if called else {"text_format": Answer}
        answer = await (api.responses.create if called else api.responses.parse)(model="tiny", input="hello", **fields)
        settings = {name: value for name, value in answer.to_dict().items() if name in ("tools", "tool_choice", "text")}
        for output in (answer.output, [item.model_dump() for item in answer.output], answer.to_dict()["output"]):
            await api.responses.create(model="tiny", input=[*HELLO, *output, *HELLO], **settings)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ('{"a": 1, "b": "x', {"a": 1, "b": "x"}),
        ('{"a', {}),
        ("[1]", {"arguments": "[1]"}),
        ("no JSON", {"arguments": "no JSON"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("[" * 1000, {"arguments": "[" * 1000}),
    ],
)
async def test_any_text_is_an_argument_of_an_earlier_call(
    compiler: FakeCompiler, replica: FakeReplica, text: str, arguments: dict[str, Any]
) -> None:
    replica.chat_template = "{{ tools }}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, *HELLO]
    async with client_of(application(compiler, replica, tool_format="hermes")) as http:
        assert (await http.post(CHAT, json={"messages": messages})).status_code == 200
    (sent,) = replica.requests[0]["messages"][1]["tool_calls"]
    assert sent["function"]["arguments"] == arguments


@pytest.mark.parametrize("template", [None, "{{ tools }}"])
async def test_a_result_whose_call_was_trimmed(http: httpx.AsyncClient, replica: FakeReplica, template: Any) -> None:
    replica.chat_template = template
    result = {"role": "tool", "tool_call_id": "gone", "content": "x"}
    fields = {"tools": [{"type": "function", "function": FUNCTION}]}
    assert (await http.post(CHAT, json={"messages": [*HELLO, result], **fields})).status_code == 200
    blocks = [{"type": "tool_result", "tool_use_id": "gone", "content": "x"}]
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    body = {**WHOLE[MESSAGES], "messages": [*HELLO, {"role": "user", "content": blocks}], "tools": tools}
    assert (await http.post(MESSAGES, json=body)).status_code == 200


async def test_a_cut_tool_use_is_told_as_far_as_it_goes(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.say('<call:f>{"a": 1, "b": "x')
    replica.finish_reason = "length"
    body = {**WHOLE[MESSAGES], "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    told = (await http.post(MESSAGES, json=body)).json()
    (block,) = told["content"]
    assert (block["type"], block["input"]) == ("tool_use", {"a": 1, "b": "x"}) and told["stop_reason"] == "max_tokens"


def test_the_document_lists_what_is_ignored() -> None:
    text = (REPOSITORY / "docs" / "api.md").read_text().split("## Ignored fields")[1].split("\n## ")[0]
    _, *rows = re.findall(r"^\| ([^|]+) \| (.*) \|$", text, re.M)
    listed = {kind.split("`")[1] if "`" in kind else kind: set(re.findall(r"`(\w+)`", names)) for kind, names in rows}
    assert listed == {kind: set(names) for kind, names in IGNORED.items()}
