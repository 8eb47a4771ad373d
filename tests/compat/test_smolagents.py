"""smolagents: an agent that calls tools, whose prompt lists them as text, too."""

from __future__ import annotations

from typing import Any

from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole

from tests.compat.conftest import FORMAT, KEY, MODEL, PROMPT, Person

PACKAGE = "smolagents"
APIS = ["chat"]


def model(url: str, **fields: Any) -> Any:
    return OpenAIModel(MODEL, api_base=url, api_key=KEY, temperature=0, **fields)


def test_object(url: str) -> None:
    message = ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": PROMPT}])
    answer = model(url, max_tokens=300).generate([message], response_format=FORMAT)
    Person.model_validate_json(answer.content)


@tool
def look_up(city: str) -> str:
    """Look a city up.

    Args:
        city: Its name.
    """
    return f"{city} is large."


def test_tool_results(url: str) -> None:
    """Its own instructions are longer than the context of the shipped model: they are replaced."""
    agent = ToolCallingAgent(tools=[look_up], model=model(url, max_tokens=200), verbosity_level=0)
    agent.prompt_templates["system_prompt"] = "Call a tool."
    list(agent.run("Where is Alice?", max_steps=2, stream=True))
    assert [step.tool_calls for step in agent.memory.steps if getattr(step, "tool_calls", None)]
