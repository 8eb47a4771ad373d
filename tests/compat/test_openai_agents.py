"""openai-agents: a run of its loop by each of its model classes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import agents
import openai
import pytest
from openai.types.shared import Reasoning

from tests.compat.conftest import KEY, MODEL, PROMPT, THINKING, Person

pytestmark = pytest.mark.anyio

PACKAGE = "openai-agents"
APIS = ["chat", "responses"]
ASK: Any = {"role": "user", "content": PROMPT}
OUTPUT = agents.AgentOutputSchema(Person, strict_json_schema=False)


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as one:
        yield one


def agent(client: openai.AsyncOpenAI, api: str, most: int = 300, more: Any = None, **fields: Any) -> Any:
    kind: Any = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    settings = agents.ModelSettings(temperature=0, max_tokens=most, **(more or {}))
    return agents.Agent(name="a", model=kind(MODEL, client), model_settings=settings, **fields)


def short(client: openai.AsyncOpenAI, api: str) -> Any:
    """One that answers in a few tokens; over the Responses API an answer that its limit ends raises."""
    return agent(client, api, 20, {"extra_body": {"structured_outputs": {"choice": ["large", "small"]}}})


@agents.function_tool
def look_up(city: str) -> str:
    """Look a city up."""
    if city != "Paris":
        raise ValueError("no such city")
    return f"{city} is large."


def history(output: str) -> list[Any]:
    calls = [
        {"type": "function_call", "call_id": f"call_{place}", "name": "look_up", "arguments": '{"city": "Paris"}'}
        for place in range(2)
    ]
    results = [{"type": "function_call_output", "call_id": one["call_id"], "output": output} for one in calls]
    return [ASK, *calls, *results]


async def test_text(client: openai.AsyncOpenAI, api: str) -> None:
    assert (await agents.Runner.run(short(client, api), PROMPT)).final_output


async def test_object(client: openai.AsyncOpenAI, api: str) -> None:
    result = await agents.Runner.run(agent(client, api, output_type=OUTPUT), PROMPT)
    assert isinstance(result.final_output, Person)
    again: Any = [*result.to_input_list(), ASK]
    assert (await agents.Runner.run(short(client, api), again)).final_output


async def test_streamed_object(client: openai.AsyncOpenAI, api: str) -> None:
    result = agents.Runner.run_streamed(agent(client, api, output_type=OUTPUT), PROMPT)
    kinds = {event.type async for event in result.stream_events()}
    assert "raw_response_event" in kinds and isinstance(result.final_output, Person)


async def test_tool_results(client: openai.AsyncOpenAI, api: str) -> None:
    """The first turn must call; the run ends with its result and the items go into another one."""
    one = agent(client, api, more={"tool_choice": "required"}, tools=[look_up], tool_use_behavior="stop_on_first_tool")
    result = await agents.Runner.run(one, PROMPT)
    assert "function_call_output" in {item["type"] for item in result.to_input_list() if "type" in item}
    assert (await agents.Runner.run(short(client, api), result.to_input_list())).final_output is not None


async def test_parallel_calls(client: openai.AsyncOpenAI, api: str) -> None:
    more = {"tool_choice": "required", "parallel_tool_calls": True}
    one = agent(client, api, 200, more, tools=[look_up], tool_use_behavior="stop_on_first_tool")
    result = agents.Runner.run_streamed(one, PROMPT)
    assert "run_item_stream_event" in {event.type async for event in result.stream_events()}
    assert (await agents.Runner.run(short(client, api), history("large"))).final_output is not None


async def test_error_results(client: openai.AsyncOpenAI, api: str) -> None:
    told = "An error occurred while running the tool. Please try again. Error: no such city"
    assert (await agents.Runner.run(short(client, api), history(told))).final_output is not None


async def test_reasoning_echo(client: openai.AsyncOpenAI, api: str) -> None:
    extra = THINKING if api == "chat" else {name: value for name, value in THINKING.items() if name != "thinking"}
    more = {"extra_body": extra, "reasoning": Reasoning(effort="low")}
    result = await agents.Runner.run(agent(client, api, 160, more), PROMPT)
    items: Any = result.to_input_list()
    assert "reasoning" in {item["type"] for item in items if "type" in item}
    assert (await agents.Runner.run(short(client, api), [*items, ASK])).final_output


async def test_tools_beside_an_object(client: openai.AsyncOpenAI, api: str) -> None:
    one = agent(client, api, tools=[look_up], output_type=OUTPUT)
    with contextlib.suppress(agents.MaxTurnsExceeded):  # where the toy model calls each time
        assert isinstance((await agents.Runner.run(one, PROMPT, max_turns=3)).final_output, Person)
