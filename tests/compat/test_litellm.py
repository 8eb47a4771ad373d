"""litellm, as a client of an OpenAI-compatible server."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pytest

from tests.compat.conftest import MODEL, PROMPT, Person

MESSAGES = [{"role": "user", "content": PROMPT}]
TOOL = {"type": "function", "function": {"name": "save", "parameters": Person.model_json_schema()}}


def complete(url: str, **fields: Any) -> Any:
    settings = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none", "messages": MESSAGES, "temperature": 0}
    return litellm.completion(**{**settings, **fields})


def test_a_schema(url: str) -> None:
    answer = complete(url, response_format=Person)
    Person.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "save"}}])
def test_tools(url: str, choice: Any) -> None:
    answer = complete(url, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    Person.model_validate_json(call.function.arguments)


def test_streams(url: str) -> None:
    chunks = list(complete(url, response_format=Person, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    Person.model_validate_json(text)
    assert any(getattr(chunk, "usage", None) for chunk in chunks)


def test_thoughts(url: str) -> None:
    """What they are is the model's business: the limit makes them end in time."""
    answer = complete(
        url,
        response_format=Person,
        max_tokens=160,
        extra_body={"thinking": True, "finish_within_budget": True},
    )
    message = answer.choices[0].message
    Person.model_validate_json(message.content)
    assert message.reasoning_content


def test_responses(url: str) -> None:
    fields: Any = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none", "input": PROMPT}
    schema = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema(), "strict": True}
    answer: Any = litellm.responses(**fields, text={"format": schema})
    Person.model_validate(json.loads(answer.output[0].content[0].text))
