"""llama-index, whose `OpenAILike` is its model for servers of others."""

from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from llama_index.llms.openai_like.responses import OpenAILikeResponses

from tests.compat.conftest import FORMAT, KEY, MODEL, PROMPT, THINKING, Person, judged

PACKAGE = "llama-index-llms-openai-like"
APIS = ["chat", "responses"]
ASK = ChatMessage(role=MessageRole.USER, content=PROMPT)
TEMPLATE = PromptTemplate("{text}")


def model(url: str, api: str, most: int = 300, **settings: Any) -> Any:
    common: Any = {"model": MODEL, "api_base": url, "api_key": KEY, "temperature": 0, "max_retries": 0}
    common |= {"is_function_calling_model": True, "context_window": 2048, **settings}
    if api == "responses":
        return OpenAILikeResponses(max_output_tokens=most, **common)
    return OpenAILike(max_tokens=most, is_chat_model=True, should_use_structured_outputs=True, **common)


def look_up(city: Literal["Paris", "Rome"]) -> str:
    """Look a city up."""
    return f"{city} is large."


TOOLS: Any = [FunctionTool.from_defaults(look_up)]


def called(llm: Any, answer: Any) -> list[tuple[str, Any]]:
    made = llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    return [(call.tool_name, call.tool_kwargs) for call in made]


def test_text(url: str, api: str) -> None:
    assert model(url, api, 20).chat([ASK]).message.content
    # Its last answer is empty where the limit ended the output: it knows `response.completed` alone.
    assert "".join(answer.delta or "" for answer in model(url, api, 20).stream_chat([ASK]))


def test_object(url: str, api: str) -> None:
    assert isinstance(model(url, api).structured_predict(Person, TEMPLATE, text=PROMPT), Person)


def test_streamed_object(url: str) -> None:
    """Not over `/v1/responses`, where it looks for calls in `additional_kwargs`, which its own client leaves empty."""
    *_, last = model(url, "chat").stream_structured_predict(Person, TEMPLATE, text=PROMPT)
    Person.model_validate(last.model_dump())


def test_tool_results(url: str, api: str) -> None:
    llm = model(url, api)
    answer = llm.chat_with_tools(TOOLS, user_msg=PROMPT, tool_required=True)
    judged("", called(llm, answer))
    (call,) = llm.get_tool_calls_from_response(answer)
    result = ChatMessage(role=MessageRole.TOOL, content="large", additional_kwargs={"tool_call_id": call.tool_id})
    assert model(url, api, 20).chat([ASK, answer.message, result]).raw


def history(*results: str) -> list[ChatMessage]:
    calls: list[Any] = [
        ToolCallBlock(tool_call_id=f"call_{place}", tool_name="look_up", tool_kwargs={"city": "Paris"})
        for place in range(len(results))
    ]
    told = [
        ChatMessage(role=MessageRole.TOOL, content=one, additional_kwargs={"tool_call_id": f"call_{place}"})
        for place, one in enumerate(results)
    ]
    return [ASK, ChatMessage(role=MessageRole.ASSISTANT, blocks=calls), *told]


def test_parallel_calls(url: str, api: str) -> None:
    llm = model(url, api, 200)
    judged(
        "", called(llm, llm.chat_with_tools(TOOLS, user_msg=PROMPT, tool_required=True, allow_parallel_tool_calls=True))
    )
    assert model(url, api, 20).chat_with_tools(TOOLS, chat_history=history("large", "old")).raw


def test_error_results(url: str, api: str) -> None:
    assert model(url, api, 20).chat_with_tools(TOOLS, chat_history=history("Encountered error: no such city")).raw


def test_reasoning_echo(url: str, api: str) -> None:
    if api == "chat":
        answer = model(url, api, 160, additional_kwargs={"extra_body": THINKING}).chat([ASK]).message
        assert answer.content in ("yes", "no")
    else:
        thoughts = ThinkingBlock(content="Hm.", additional_information={"id": "rs_1", "type": "reasoning"})
        answer = ChatMessage(role=MessageRole.ASSISTANT, blocks=[thoughts, TextBlock(text="Yes.")])
    assert model(url, api, 20).chat([ASK, answer, ASK]).raw


def test_tools_beside_an_object(url: str) -> None:
    llm = model(url, "chat")
    answer = llm.chat_with_tools(TOOLS, user_msg=PROMPT, response_format=FORMAT, strict=False)
    judged(answer.message.content, called(llm, answer))
