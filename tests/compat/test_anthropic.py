"""Anthropic's own client, and an agent that speaks its protocol."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from tests.compat.conftest import MODEL, PROMPT, Person

MESSAGES: Any = [{"role": "user", "content": PROMPT}]
TOOL: Any = {"name": "save_person", "description": "Stores a person.", "input_schema": Person.model_json_schema()}


@pytest.fixture
def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)


def test_text_and_its_tokens(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=MESSAGES, system="Be brief.")
    assert {block.type for block in answer.content} <= {"text"} and answer.stop_reason in ("end_turn", "max_tokens")
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES, system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens > 0


def test_structured_output(client: anthropic.Anthropic) -> None:
    wanted: Any = {"format": {"type": "json_schema", "schema": Person.model_json_schema()}}
    answer: Any = client.messages.create(model=MODEL, max_tokens=400, messages=MESSAGES, output_config=wanted)
    assert answer.stop_reason == "end_turn"
    Person.model_validate_json(answer.content[0].text)


def test_the_stream_helper(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=MODEL, max_tokens=30, messages=MESSAGES) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "text" in kinds
    assert final.content[0].type == "text" and final.stop_reason is not None and final.usage.output_tokens > 0


def test_a_stop_sequence(client: anthropic.Anthropic) -> None:
    wanted: Any = {"regex": "[ab]{2}c[ab]{2}"}
    answer = client.messages.create(
        model=MODEL,
        max_tokens=20,
        messages=MESSAGES,
        stop_sequences=["q"],
        extra_body={"structured_outputs": wanted},
    )
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None


def test_tools_there_and_back(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "save_person"}
    fields: Any = {"model": MODEL, "max_tokens": 400, "tools": [TOOL]}
    answer: Any = client.messages.create(messages=MESSAGES, tool_choice=choice, **fields)
    (call,) = answer.content
    assert answer.stop_reason == "tool_use" and call.name == "save_person"
    Person.model_validate(call.input)
    with client.messages.stream(messages=MESSAGES, tool_choice=choice, **fields) as stream:
        final: Any = stream.get_final_message()
    Person.model_validate(final.content[0].input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "stored"}
    conversation = [
        *MESSAGES,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result, {"type": "text", "text": "Thanks."}]},
    ]
    none: Any = {"type": "none"}
    last = client.messages.create(messages=conversation, tool_choice=none, **{**fields, "max_tokens": 10})
    assert last.stop_reason in ("end_turn", "max_tokens")


def test_thoughts(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    answer: Any = client.messages.create(
        model=MODEL,
        max_tokens=300,
        messages=MESSAGES,
        thinking=thinking,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )
    assert answer.content[0].type == "thinking" or answer.stop_reason == "end_turn"
    if answer.stop_reason == "end_turn":
        assert answer.content[-1].text in ("yes", "no")


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=5, messages=MESSAGES)
    with pytest.raises(anthropic.BadRequestError) as caught:
        schema: Any = {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}
        client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES, output_config=schema)
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"


@pytest.mark.anyio
async def test_an_agent(url: str) -> None:
    provider = AnthropicProvider(base_url=url.removesuffix("/v1"), api_key="none")
    agent: Any = Agent(AnthropicModel(MODEL, provider=provider), output_type=Person)
    result = await agent.run(PROMPT)
    assert isinstance(result.output, Person)
