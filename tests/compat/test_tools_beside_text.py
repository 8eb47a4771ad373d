"""Agents with a typed result and tools in one request, which the model may call or not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import agents
import anthropic
import langchain_openai
import openai
import pytest
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import UsageLimits

from tests.compat.conftest import MODEL, PROMPT, Person

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look_up", "description": "Looks a city up.", "parameters": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def judged(content: str | None, calls: list[tuple[str, str]]) -> None:
    """Raises where an answer is neither valid calls nor a valid text."""
    for name, arguments in calls:
        assert name == "look_up" and json.loads(arguments)["city"] in ("Paris", "Rome")
    assert bool(content) != bool(calls)
    if content:
        Person.model_validate_json(content)


def test_openai(url: str) -> None:
    client: Any = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    kinds = set()
    for seed in range(20):
        fields: Any = {"model": MODEL, "messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]}
        fields |= {"response_format": FORMAT, "seed": seed, "max_tokens": 300, "temperature": 2}
        choice = client.chat.completions.create(**fields).choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
        if choice.finish_reason != "length":
            judged(choice.message.content, calls)
            kinds.add(choice.finish_reason)
        text, arguments = "", ""
        for chunk in client.chat.completions.create(**fields, stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            arguments += "".join(call.function.arguments for call in delta.tool_calls or ())
        assert (text, arguments) == (choice.message.content or "", "".join(one for _, one in calls))
    assert kinds


def test_anthropic(url: str) -> None:
    client: Any = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
    tool = {"name": "look_up", "input_schema": SCHEMA}
    wanted = {"format": {"type": "json_schema", "schema": Person.model_json_schema()}}
    answer = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=300, tools=[tool], output_config=wanted)
    blocks = {block.type: block for block in answer.content}
    judged(
        blocks["text"].text if "text" in blocks else None,
        [("look_up", json.dumps(blocks["tool_use"].input))] if "tool_use" in blocks else [],
    )


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
async def test_agents(url: str, kind: Any) -> None:
    @agents.function_tool
    def look_up(city: str) -> str:
        """Look a city up."""
        return f"{city} is large."

    agents.set_tracing_disabled(True)
    output = agents.AgentOutputSchema(Person, strict_json_schema=False)
    settings = agents.ModelSettings(temperature=0, max_tokens=300)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        fields: Any = {"model": kind(MODEL, client), "tools": [look_up], "output_type": output}
        agent: Any = agents.Agent(name="a", model_settings=settings, **fields)
        with contextlib.suppress(agents.MaxTurnsExceeded):  # where the toy model calls each time
            assert isinstance((await agents.Runner.run(agent, PROMPT, max_turns=3)).final_output, Person)


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
async def test_pydantic_ai(url: str, kind: Any) -> None:
    model = kind(MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))
    settings = ModelSettings(temperature=0, max_tokens=300)
    agent = Agent(model, output_type=NativeOutput(Person), retries=0, model_settings=settings)

    @agent.tool_plain
    def look_up(city: str) -> str:
        """Look a city up."""
        return f"{city} is large."

    with contextlib.suppress(UsageLimitExceeded):  # where the toy model calls each time
        result = await agent.run(PROMPT, usage_limits=UsageLimits(request_limit=3))
        assert isinstance(result.output, Person)


def test_langchain(url: str) -> None:
    """What its agents send for `ProviderStrategy`."""
    model: Any = langchain_openai.ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0, max_tokens=300)
    tools = [{"type": "function", "function": FUNCTION}]
    answer = model.bind_tools(tools, response_format=FORMAT, strict=False).invoke(PROMPT)
    judged(answer.content, [(call["name"], json.dumps(call["args"])) for call in answer.tool_calls])
