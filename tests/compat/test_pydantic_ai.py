"""pydantic-ai: agents with typed output, tools and streams, over both of OpenAI's shapes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from tests.compat.conftest import MODEL, PROMPT, Person

pytestmark = pytest.mark.anyio

SETTINGS = ModelSettings(temperature=0, max_tokens=300)
MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
OUTPUTS = {"tool": ToolOutput, "native": NativeOutput}


def model(url: str, kind: str) -> Any:
    return MODELS[kind](MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("kind", MODELS)
async def test_typed_output(url: str, kind: str, output: str) -> None:
    agent = Agent(model(url, kind), output_type=OUTPUTS[output](Person), retries=0, model_settings=SETTINGS)
    result = await agent.run(PROMPT)
    assert isinstance(result.output, Person) and result.usage.output_tokens > 0


@pytest.mark.parametrize("kind", MODELS)
async def test_typed_output_is_streamed(url: str, kind: str) -> None:
    agent = Agent(model(url, kind), output_type=NativeOutput(Person), retries=0, model_settings=SETTINGS)
    async with agent.run_stream(PROMPT) as result:
        assert isinstance(await result.get_output(), Person)


@pytest.mark.parametrize("kind", MODELS)
async def test_a_tool_is_called_and_its_result_goes_back(url: str, kind: str) -> None:
    """With one function and no text allowed the model must call it."""
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    tool = ToolDefinition(name="note_age", description="Writes an age down.", parameters_json_schema=schema)
    parameters = ModelRequestParameters(function_tools=[tool], allow_text_output=False)
    question = ModelRequest(parts=[UserPromptPart(PROMPT)])
    called = await model_request(
        model(url, kind), [question], model_request_parameters=parameters, model_settings=SETTINGS
    )
    call = next(part for part in called.parts if isinstance(part, ToolCallPart))
    assert call.tool_name == "note_age" and isinstance(call.args_as_dict()["age"], int)
    results = [
        ToolReturnPart(tool_name=part.tool_name, content="noted", tool_call_id=part.tool_call_id)
        for part in called.parts
        if isinstance(part, ToolCallPart)
    ]
    answer = await model_request(
        model(url, kind),
        [question, called, ModelRequest(parts=results)],
        model_settings=ModelSettings(temperature=0, max_tokens=20),
    )
    assert all(isinstance(part, TextPart) for part in answer.parts)


@pytest.mark.parametrize("kind", MODELS)
async def test_text(url: str, kind: str) -> None:
    agent = Agent(model(url, kind), model_settings=ModelSettings(temperature=0, max_tokens=20))
    assert isinstance((await agent.run("Hello")).output, str)
