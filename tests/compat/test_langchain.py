"""langchain-openai: structured output by each of its methods, tools and streams, over both of OpenAI's APIs."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, trim_messages
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from pydantic import SecretStr

from tests.compat.conftest import FORMAT, FUNCTION, KEY, MODEL, PROMPT, THINKING, Person, judged

PACKAGE = "langchain-openai"
APIS = ["chat", "responses"]
ASK = HumanMessage(PROMPT)
TOOL = {"type": "function", "function": FUNCTION}


def chat(url: str, api: str, **settings: Any) -> Any:
    fields: Any = {"temperature": 0, "max_retries": 0, "max_tokens": 300, **settings}
    return ChatOpenAI(model=MODEL, base_url=url, api_key=SecretStr(KEY), use_responses_api=api == "responses", **fields)


def called(message: Any) -> list[tuple[str, Any]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


def test_text(url: str, api: str) -> None:
    chunks = list(chat(url, api, max_tokens=20, stream_usage=True).stream("Hello"))
    assert any(chunk.usage_metadata and chunk.usage_metadata["output_tokens"] for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == chat(url, api, max_tokens=20).invoke("Hello").text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [True, None])
def test_object(url: str, api: str, method: Any, strict: bool | None) -> None:
    person = chat(url, api).with_structured_output(Person, method=method, strict=strict).invoke(PROMPT)
    assert isinstance(person, Person)


def test_streamed_object(url: str, api: str) -> None:
    schema = {**Person.model_json_schema(), "title": "person"}
    *_, last = chat(url, api).with_structured_output(schema, method="json_schema").stream(PROMPT)
    Person.model_validate(last)


def test_tool_results(url: str, api: str) -> None:
    """Of a streamed call, too."""
    bound = chat(url, api).bind_tools([TOOL], tool_choice="look_up", parallel_tool_calls=False)
    whole, *chunks = bound.stream([ASK])
    assert len(chunks) > 1
    for chunk in chunks:
        whole += chunk
    for message in (bound.invoke([ASK]), whole):
        judged("", called(message))
        result = ToolMessage("large", tool_call_id=message.tool_calls[0]["id"])
        assert chat(url, api, max_tokens=20).invoke([ASK, message, result]).id


def two_calls(status: Any) -> list[Any]:
    calls: Any = [
        {"type": "tool_call", "id": f"call_{place}", "name": "look_up", "args": {"city": city}}
        for place, city in enumerate(("Paris", "Rome"))
    ]
    return [
        ASK,
        AIMessage("", tool_calls=calls),
        *(ToolMessage("?", tool_call_id=one["id"], status=status) for one in calls),
    ]


def test_parallel_calls(url: str, api: str) -> None:
    bound = chat(url, api, max_tokens=200).bind_tools([TOOL], tool_choice="required", parallel_tool_calls=True)
    judged("", called(bound.invoke([ASK])))
    assert chat(url, api, max_tokens=20).bind_tools([TOOL]).invoke(two_calls("success")).id


def test_error_results(url: str, api: str) -> None:
    assert chat(url, api, max_tokens=20).bind_tools([TOOL]).invoke(two_calls("error")).id


def test_reasoning_echo(url: str, api: str) -> None:
    if api == "chat":
        message = chat(url, api, max_tokens=160, extra_body=THINKING).invoke([ASK])
        assert message.text in ("yes", "no")
    else:
        extra = {"structured_outputs": THINKING["structured_outputs"]}
        message = chat(url, api, max_tokens=160, extra_body=extra, reasoning={"effort": "low"}).invoke([ASK])
        assert "reasoning" in {block["type"] for block in message.content}
    assert chat(url, api, max_tokens=20).invoke([ASK, message, ASK]).id


def test_tools_beside_an_object(url: str, api: str) -> None:
    """As a model, and as an agent, whose `ProviderStrategy` sends both."""
    if api == "chat":
        strict = {"type": "function", "function": {**FUNCTION, "strict": True}}
        answer = chat(url, api).bind_tools([strict], response_format=FORMAT).invoke(PROMPT)
        judged(answer.content, called(answer))

    @tool
    def look_up(city: str) -> str:
        """Look a city up."""
        return f"{city} is large."

    agent: Any = create_agent(chat(url, api), tools=[look_up], response_format=ProviderStrategy(Person))
    try:
        state = agent.invoke({"messages": [ASK]}, {"recursion_limit": 6})
    except GraphRecursionError:  # where the toy model calls each time
        return
    assert isinstance(state["structured_response"], Person)


def test_a_conversation_that_is_too_long_is_trimmed(url: str, api: str) -> None:
    long: Any = [message for _ in range(60) for message in (HumanMessage("word " * 60), AIMessage("Yes."))] + [ASK]
    model = chat(url, api, max_tokens=9)
    with pytest.raises(ContextOverflowError):
        model.invoke(long)
    trim = trim_messages(max_tokens=300, token_counter=count_tokens_approximately, start_on="human")
    tries: list[int] = []

    def ask(messages: Any) -> Any:
        tries.append(len(messages))
        return model.invoke(messages)

    asking: Any = RunnableLambda(ask)
    recovering = asking.with_fallbacks([trim | asking], exceptions_to_handle=(ContextOverflowError,))
    assert recovering.invoke(long).id and len(tries) == 2 and tries[0] == len(long) > tries[1]
