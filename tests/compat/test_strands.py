"""strands-agents: an agent with a tool, and the history that it shortens by itself."""

from __future__ import annotations

import contextlib
from typing import Any

import strands
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.models.openai import OpenAIModel
from strands.types.exceptions import MaxTokensReachedException

from tests.compat.conftest import KEY, MODEL, PROMPT, Person

PACKAGE = "strands-agents"
APIS = ["chat"]


def agent(url: str, **fields: Any) -> Any:
    client: Any = {"base_url": url, "api_key": KEY, "max_retries": 0}
    params: Any = {"max_tokens": 60, "temperature": 0}
    model = OpenAIModel(client_args=client, model_id=MODEL, params=params)
    return strands.Agent(model=model, callback_handler=None, **fields)


def test_object(url: str) -> None:
    one = agent(url)
    one.model.update_config(params={"max_tokens": 300})
    assert isinstance(one.structured_output(Person, PROMPT), Person)


def test_tool_results(url: str) -> None:
    """The tool was called before; the agent continues from there."""

    @strands.tool
    def look_up(city: str) -> str:
        """Look a city up."""
        return f"{city} is large."

    use = {"toolUseId": "call_0", "name": "look_up", "input": {"city": "Paris"}}
    result = {"toolUseId": "call_0", "status": "error", "content": [{"text": "No such city."}]}
    messages = [
        {"role": "user", "content": [{"text": PROMPT}]},
        {"role": "assistant", "content": [{"toolUse": use}]},
        {"role": "user", "content": [{"toolResult": result}]},
        {"role": "assistant", "content": [{"text": "Hm."}]},
    ]
    one = agent(url, messages=messages, tools=[look_up])
    try:
        assert one("Again.").message["role"] == "assistant"
    except MaxTokensReachedException:
        assert one.messages[-1]["role"] == "assistant"  # a text that the limit cut


def test_a_conversation_that_is_too_long_is_shortened(url: str) -> None:
    turn: Any = [
        {"role": "user", "content": [{"text": "word " * 60}]},
        {"role": "assistant", "content": [{"text": "Yes."}]},
    ]
    window = SlidingWindowConversationManager(window_size=20, per_turn=False)
    one = agent(url, messages=turn * 60, conversation_manager=window)
    with contextlib.suppress(MaxTokensReachedException):
        one("And in short?")
    assert 0 < len(one.messages) < 122
