"""pydantic-ai: agents with typed output, tools and streams, over each API."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError, UsageLimitExceeded
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import UsageLimits

from tests.compat.conftest import CITY, KEY, MODEL, PROMPT, THINKING, Person, judged

pytestmark = pytest.mark.anyio

PACKAGE = "pydantic-ai-slim"
APIS = ["chat", "responses", "messages"]
ASK = ModelRequest(parts=[UserPromptPart(PROMPT)])
TOOL = ToolDefinition(name="look_up", description="Looks a city up.", parameters_json_schema=CITY)
OUTPUTS = {"tool": ToolOutput, "native": NativeOutput}


def model(url: str, api: str) -> Any:
    if api == "messages":
        provider = AnthropicProvider(base_url=url.removesuffix("/v1"), api_key=KEY)
        # It knows models by their names.
        return AnthropicModel(MODEL, provider=provider, profile={"supports_json_schema_output": True})
    kind: Any = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind(MODEL, provider=OpenAIProvider(base_url=url, api_key=KEY))


def settings(most: int = 300, **more: Any) -> Any:
    return {"temperature": 0, "max_tokens": most, **more}


async def ask(url: str, api: str, messages: Any, *, text: bool = True, tools: bool = True, **given: Any) -> Any:
    parameters = ModelRequestParameters(function_tools=[TOOL] if tools else [], allow_text_output=text)
    return await model_request(
        model(url, api), messages, model_request_parameters=parameters, model_settings=settings(**given)
    )


def calls(answer: Any) -> list[Any]:
    return [part for part in answer.parts if isinstance(part, ToolCallPart)]


async def test_text(url: str, api: str) -> None:
    assert isinstance((await Agent(model(url, api), model_settings=settings(20)).run("Hello")).output, str)


@pytest.mark.parametrize("output", OUTPUTS)
async def test_object(url: str, api: str, output: str) -> None:
    kind: Any = OUTPUTS[output](Person)
    result: Any = await Agent(model(url, api), output_type=kind, retries=0, model_settings=settings()).run(PROMPT)
    assert isinstance(result.output, Person) and result.usage.output_tokens > 0


async def test_streamed_object(url: str, api: str) -> None:
    agent: Any = Agent(model(url, api), output_type=NativeOutput(Person), retries=0, model_settings=settings())
    async with agent.run_stream(PROMPT) as result:
        assert isinstance(await result.get_output(), Person)


async def test_tool_results(url: str, api: str) -> None:
    """With one function and no text allowed the model must call it."""
    answer = await ask(url, api, [ASK], text=False, parallel_tool_calls=False)
    judged("", [(one.tool_name, one.args_as_dict()) for one in calls(answer)])
    results = [ToolReturnPart(one.tool_name, "large", one.tool_call_id) for one in calls(answer)]
    assert await ask(url, api, [ASK, answer, ModelRequest(parts=results)], most=20)


TWO = ModelResponse(parts=[ToolCallPart("look_up", {"city": city}, f"call_{city}") for city in ("Paris", "Rome")])


async def test_parallel_calls(url: str, api: str) -> None:
    answer = await ask(url, api, [ASK], text=False, parallel_tool_calls=True, most=200)
    judged("", [(one.tool_name, one.args_as_dict()) for one in calls(answer)])
    results = [ToolReturnPart(one.tool_name, "large", one.tool_call_id) for one in calls(TWO)]
    assert await ask(url, api, [ASK, TWO, ModelRequest(parts=results)], most=20)


async def test_error_results(url: str, api: str) -> None:
    results = [
        RetryPromptPart("No such city.", tool_name="look_up", tool_call_id=one.tool_call_id) for one in calls(TWO)
    ]
    assert await ask(url, api, [ASK, TWO, ModelRequest(parts=results)], most=20)


async def test_reasoning_echo(url: str, api: str) -> None:
    extra = {"structured_outputs": THINKING["structured_outputs"]}
    if api == "messages":
        given: Any = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "extra_body": extra}
    elif api == "responses":
        given = {"openai_reasoning_effort": "low", "extra_body": extra}
    else:
        given = {"extra_body": THINKING}
    answer = await ask(url, api, [ASK], tools=False, most=160, **given)
    assert isinstance(answer.parts[0], ThinkingPart)
    assert await ask(url, api, [ASK, answer, ASK], tools=False, most=20)


async def test_tools_beside_an_object(url: str, api: str) -> None:
    agent: Any = Agent(model(url, api), output_type=NativeOutput(Person), retries=0, model_settings=settings())

    @agent.tool_plain
    def look_up(city: str) -> str:
        """Look a city up."""
        return f"{city} is large."

    with contextlib.suppress(UsageLimitExceeded):  # where the toy model calls each time
        result = await agent.run(PROMPT, usage_limits=UsageLimits(request_limit=3))
        assert isinstance(result.output, Person)


async def test_a_conversation_that_is_too_long_goes_to_the_fallback(url: str, api: str) -> None:
    """Its own classes: only a context that is too long falls back here."""
    turn = [ModelRequest(parts=[UserPromptPart("word " * 60)]), ModelResponse(parts=[TextPart("Yes.")])]
    small, large = model(url, api), TestModel(custom_output_text="From the large model.")
    with pytest.raises(ModelContextWindowExceededError):
        await Agent(small, model_settings=settings(9)).run(PROMPT, message_history=turn * 60)
    agent: Any = Agent(FallbackModel(small, large, fallback_on=(ModelContextWindowExceededError,)))
    result = await agent.run(PROMPT, message_history=turn * 60, model_settings=settings(9))
    assert result.output == "From the large model."
    result = await agent.run(PROMPT, message_history=turn, model_settings=settings(9))
    assert result.output != "From the large model."
    with pytest.raises(ModelHTTPError):
        await agent.run(PROMPT, model_settings=settings(9, extra_body={"guided_json": {}}))
