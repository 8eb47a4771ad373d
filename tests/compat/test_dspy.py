"""dspy, which sends schemas and tools to models of which it knows that they take them: `model` registers ours."""

from __future__ import annotations

from typing import Any

import dspy
import litellm
import pytest
from dspy.utils.exceptions import AdapterParseError

from tests.compat.conftest import KEY, MODEL, PROMPT, Person

PACKAGE = "dspy"
APIS = ["chat", "responses"]
NAME = f"hosted_vllm/{MODEL}"
litellm.register_model(
    {
        NAME: {
            "litellm_provider": "hosted_vllm",
            "mode": "chat",
            "supports_function_calling": True,
            "supports_response_schema": True,
        }
    }
)


def model(url: str, api: str, most: int = 300, **fields: Any) -> Any:
    kind: Any = {"model_type": "responses"} if api == "responses" else {}
    settings: Any = {"api_base": url, "api_key": KEY, "max_tokens": most, "temperature": 0, "cache": False}
    return dspy.LM(NAME, engine="litellm", num_retries=0, **settings, **kind, **fields)


class Extract(dspy.Signature):  # type: ignore[misc]
    """Extract the person."""

    text: str = dspy.InputField()
    person: Person = dspy.OutputField()


def test_text(url: str, api: str) -> None:
    assert model(url, api, 20)("Hello")


def test_object(url: str) -> None:
    with dspy.context(lm=model(url, "chat"), adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Extract)(text=PROMPT).person, Person)


def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is large."


def test_tool_results(url: str) -> None:
    """A step of its agent, whose choice of a tool is an object, and the next one with the result."""
    with dspy.context(lm=model(url, "chat", 200), adapter=dspy.JSONAdapter()):
        try:
            assert dspy.ReAct("question -> answer: str", tools=[look_up], max_iters=2)(question="Paris?").trajectory
        except AdapterParseError:
            pytest.skip("the toy model wrote on until its limit")


def test_a_prompt_that_is_too_long(url: str) -> None:
    with pytest.raises(dspy.ContextWindowExceededError):
        model(url, "chat", 9)("word " * 5000)
