"""langchain-openai: structured output by each of its methods, tools, streams, over both of OpenAI's shapes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.compat.conftest import MODEL, PROMPT, Person

APIS = ["chat", "responses"]


def chat(url: str, api: str, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=url,
        api_key=SecretStr("none"),
        temperature=0,
        max_retries=0,
        use_responses_api=api == "responses",
        **settings,
    )


@tool
def note_age(age: int) -> str:
    """Writes an age down."""
    return f"noted {age}"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [True, None])
def test_structured_output(url: str, api: str, method: Any, strict: bool | None) -> None:
    person = chat(url, api).with_structured_output(Person, method=method, strict=strict).invoke(PROMPT)
    assert isinstance(person, Person)


@pytest.mark.parametrize("api", APIS)
def test_tools(url: str, api: str) -> None:
    bound = chat(url, api).bind_tools([note_age], tool_choice="note_age")
    question = HumanMessage(PROMPT)
    called = bound.invoke([question])
    (call,) = called.tool_calls
    assert call["name"] == "note_age" and isinstance(call["args"]["age"], int)
    result = ToolMessage(note_age.invoke(call["args"]), tool_call_id=call["id"])
    answer = chat(url, api, max_tokens=20).invoke([question, called, result])
    assert isinstance(answer.text, str)


@pytest.mark.parametrize("api", APIS)
def test_calls_are_streamed(url: str, api: str) -> None:
    bound = chat(url, api).bind_tools([note_age], tool_choice="note_age")
    chunks = list(bound.stream(PROMPT))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    (call,) = whole.tool_calls
    assert call["name"] == "note_age" and isinstance(call["args"]["age"], int) and len(chunks) > 2


@pytest.mark.parametrize("api", APIS)
def test_text_is_streamed_with_usage(url: str, api: str) -> None:
    chunks = list(chat(url, api, max_tokens=20, stream_usage=True).stream("Hello"))
    assert any(chunk.usage_metadata and chunk.usage_metadata["output_tokens"] for chunk in chunks)
