"""agno: an agent with a tool."""

from __future__ import annotations

from typing import Any

from agno.agent import Agent
from agno.models.openai.like import OpenAILike

from tests.compat.conftest import KEY, MODEL, PROMPT, Person

PACKAGE = "agno"
APIS = ["chat"]


def model(url: str, most: int = 300) -> Any:
    return OpenAILike(id=MODEL, base_url=url, api_key=KEY, temperature=0, max_tokens=most, max_retries=0)


def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is large."


def test_object(url: str) -> None:
    one = model(url)
    one.supports_native_structured_outputs = True
    assert isinstance(Agent(model=one, output_schema=Person, telemetry=False).run(PROMPT).content, Person)


def test_tool_results(url: str) -> None:
    agent = Agent(model=model(url, 60), tools=[look_up], tool_call_limit=1, telemetry=False)
    told = agent.run(PROMPT)
    assert told.status == "COMPLETED", told
