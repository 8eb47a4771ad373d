"""haystack: its chat generator with a tool, whose result goes back."""

from __future__ import annotations

from typing import Any

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

from tests.compat.conftest import CITY, KEY, MODEL, PROMPT, Person, judged

PACKAGE = "haystack-ai"
APIS = ["chat"]
ASK = ChatMessage.from_user(PROMPT)
TOOL = Tool("look_up", "Looks a city up.", CITY, function=lambda city: f"{city} is large.")


def ask(url: str, messages: list[ChatMessage], **fields: Any) -> ChatMessage:
    generator = OpenAIChatGenerator(api_key=Secret.from_token(KEY), model=MODEL, api_base_url=url, max_retries=0)
    reply: ChatMessage = generator.run(messages, generation_kwargs={"temperature": 0, "max_tokens": 300, **fields})[
        "replies"
    ][0]
    return reply


def test_object(url: str) -> None:
    Person.model_validate_json(ask(url, [ASK], response_format=Person).text or "")


def test_tool_results(url: str) -> None:
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token(KEY), model=MODEL, api_base_url=url, max_retries=0, tools=[TOOL], tools_strict=True
    )
    kwargs = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    reply = generator.run([ASK], generation_kwargs=kwargs)["replies"][0]
    judged("", [(call.tool_name, call.arguments) for call in reply.tool_calls])
    results = [ChatMessage.from_tool("large", origin=call, error=True) for call in reply.tool_calls]
    assert ask(url, [ASK, reply, *results], max_tokens=20).text is not None
