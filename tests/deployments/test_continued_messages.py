"""`continue_final_message`: the output goes on where the last message ends, and a constraint holds for both."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from deployments.chat.tool_formats import TOOL_FORMATS
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BEGUN = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": [{"type": "text", "text": '{"a'}]}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False, **fields}


@pytest.mark.parametrize("fields", [{}, {"add_generation_prompt": None}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_the_last_message_is_continued(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica, fields: dict[str, Any]
) -> None:
    replica.say('": ', "1}")
    constraint = {"response_format": {"type": "json_schema", "schema": SCHEMA}}
    answer = (await http.post(CHAT, json=body(**constraint, **fields))).json()
    assert answer["choices"][0]["message"]["content"] == '": 1}'
    (request,) = replica.requests
    assert request["continue_final_message"] and request["messages"][-1] == {"role": "assistant", "content": '{"a'}
    assert (compiler.calls[0][1] or {})["schema"] == SCHEMA


async def test_other_requests_have_no_new_field(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    """Replicas of an older release refuse it while they are replaced."""
    plain = {"messages": BEGUN[:1], "continue_final_message": False, "add_generation_prompt": True}
    assert (await http.post(CHAT, json=plain)).status_code == 200
    assert "continue_final_message" not in replica.requests[0]


async def test_its_thoughts_are_over(http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica) -> None:
    replica.chat_template, replica.generation_prompt = "enable_thinking </think>", "<think>\n"
    replica.say('": 1}')
    constraint = {"response_format": {"type": "json_schema", "schema": SCHEMA}}
    answer = (await http.post(CHAT, json=body(**constraint))).json()
    assert answer["choices"][0]["message"]["content"] == '": 1}'
    assert (compiler.calls[0][1] or {})["schema"] == SCHEMA
    assert replica.requests[0]["template_arguments"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": False}, "add_generation_prompt"),
        ({"continue_final_message": None}, "add_generation_prompt"),
        ({"messages": BEGUN[:1]}, "continue_final_message"),
        ({"tools": TOOLS}, "continue_final_message"),
        ({"thinking": True}, "thinking"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"thinking_budget": 9}, "thinking_budget"),
    ],
)
async def test_what_cannot_be_continued_is_refused(http: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    response = await http.post(CHAT, json=body(**fields))
    assert response.status_code == 400 and response.json()["error"]["param"] == param


async def test_text_between_markers_is_not_continued(compiler: FakeCompiler, replica: FakeReplica) -> None:
    name = next(name for name, one in TOOL_FORMATS.items() if one.texts)
    async with client_of(application(compiler, replica, tool_format=name)) as http:
        error = (await http.post(CHAT, json=body())).json()["error"]
    assert error["param"] == "continue_final_message"


async def test_a_beginning_that_the_constraint_excludes_is_a_400(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(0, {"status": 400, "message": "no", "param": "messages", "code": "invalid_prefix"})]
    response = await http.post(CHAT, json=body())
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_prefix", "messages")
