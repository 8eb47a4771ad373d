"""openai's own client, what tests/integration does not do already: its helpers, synchronously."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.compat.conftest import MODEL, PROMPT, Person

MESSAGES: Any = [{"role": "user", "content": PROMPT}]


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


def test_create_and_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=20,
        n=2,
        user="someone",
        metadata={"purpose": "test"},
        logprobs=True,
        top_logprobs=2,
        seed=1,
    )
    assert len(answer.choices) == 2 and answer.system_fingerprint and answer.choices[0].logprobs is not None
    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person)
    assert isinstance(parsed.choices[0].message.parsed, Person) and parsed.choices[0].message.refusal is None


def test_the_stream_helper_parses(client: openai.OpenAI) -> None:
    fields: Any = {"response_format": Person, "stream_options": {"include_usage": True}}
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, **fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= set(kinds)
    assert isinstance(final.choices[0].message.parsed, Person) and final.usage is not None


def test_tools_are_parsed(client: openai.OpenAI) -> None:
    tool: Any = openai.pydantic_function_tool(Person)
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    calls: Any = answer.choices[0].message.tool_calls
    assert isinstance(calls[0].function.parsed_arguments, Person)


def test_responses(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input=PROMPT, text_format=Person)
    assert isinstance(parsed.output_parsed, Person)
    with client.responses.stream(model=MODEL, input=PROMPT, text_format=Person) as stream:
        assert {"response.output_text.delta", "response.completed"} <= {event.type for event in stream}
        assert isinstance(stream.get_final_response().output_parsed, Person)
    tool: Any = openai.pydantic_function_tool(Person)["function"] | {"type": "function"}
    called: Any = client.responses.create(
        model=MODEL, input=PROMPT, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = called.output
    Person.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "saved"}
    conversation: Any = [{"role": "user", "content": PROMPT}, call, result]
    answer = client.responses.create(model=MODEL, input=conversation, max_output_tokens=20)
    assert answer.status in ("completed", "incomplete")


def test_legacy_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=5, logprobs=1)
    assert answer.choices[0].logprobs is not None and answer.system_fingerprint
