"""litellm, over each API that it speaks to servers of others."""

from __future__ import annotations

from typing import Any

import litellm
import pytest

from tests.compat.conftest import FUNCTION, KEY, MODEL, PROMPT, THINKING, Person, judged

PACKAGE = "litellm"
APIS = ["chat", "chat (hosted_vllm)", "messages"]
PROVIDERS = {"chat": "openai", "chat (hosted_vllm)": "hosted_vllm", "messages": "anthropic"}
ASK = {"role": "user", "content": PROMPT}
TOOL = {"type": "function", "function": FUNCTION}
LONG = [message for _ in range(60) for message in ({"role": "user", "content": "word " * 60}, ASK)]


def where(url: str, api: str) -> dict[str, Any]:
    base = url.removesuffix("/v1") if api == "messages" else url
    return {"model": f"{PROVIDERS[api]}/{MODEL}", "api_base": base, "api_key": KEY}


def complete(url: str, api: str, **fields: Any) -> Any:
    settings = {"messages": [ASK], "temperature": 0, "max_tokens": 300, "num_retries": 0}
    return litellm.completion(**{**where(url, api), **settings, **fields})


def called(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def test_text(url: str, api: str) -> None:
    assert complete(url, api, max_tokens=20, user="someone").choices[0].message.content


def test_object(url: str, api: str) -> None:
    message = complete(url, api, response_format=Person).choices[0].message
    Person.model_validate_json(message.content)
    assert complete(url, api, messages=[ASK, message, ASK], max_tokens=9).choices


def test_streamed_object(url: str, api: str) -> None:
    fields: Any = {"response_format": Person, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(complete(url, api, **fields))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    Person.model_validate_json(text)
    assert any(getattr(chunk, "usage", None) for chunk in chunks)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_tool_results(url: str, api: str, choice: Any) -> None:
    message = complete(url, api, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).choices[0].message
    judged("", called(message))
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "large"}
    assert complete(url, api, messages=[ASK, message, result], tools=[TOOL], max_tokens=9).choices


def history(*results: str) -> list[Any]:
    calls = [
        {"id": f"call_{place}", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Paris"}'}}
        for place in range(len(results))
    ]
    told = [{"role": "tool", "tool_call_id": f"call_{place}", "content": one} for place, one in enumerate(results)]
    return [ASK, {"role": "assistant", "content": None, "tool_calls": calls}, *told]


def test_parallel_calls(url: str, api: str) -> None:
    answer = complete(url, api, tools=[TOOL], tool_choice="required", parallel_tool_calls=True, max_tokens=200)
    judged("", called(answer.choices[0].message))
    assert complete(url, api, messages=history("large", "old"), tools=[TOOL], max_tokens=9).choices


def test_error_results(url: str, api: str) -> None:
    assert complete(url, api, messages=history("Error: no such city"), tools=[TOOL], max_tokens=9).choices


def test_reasoning_echo(url: str, api: str) -> None:
    fields: Any = {"extra_body": THINKING}
    if api == "messages":
        thinking = {"type": "enabled", "budget_tokens": 1024}
        fields = {"thinking": thinking, "allowed_openai_params": ["thinking"]}
    message = complete(url, api, max_tokens=160, **fields).choices[0].message
    assert message.reasoning_content is not None
    assert complete(url, api, messages=[ASK, message, ASK], max_tokens=9).choices


def test_tools_beside_an_object(url: str, api: str) -> None:
    message = complete(url, api, tools=[TOOL], response_format=Person).choices[0].message
    judged(message.content, called(message))


def test_responses(url: str) -> None:
    schema = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema(), "strict": True}
    answer: Any = litellm.responses(**where(url, "chat"), input=PROMPT, text={"format": schema})
    Person.model_validate_json(answer.output[0].content[0].text)


def test_a_conversation_that_is_too_long_goes_to_the_fallback(url: str, api: str) -> None:
    """Its own classes: only a context that is too long has these fallbacks."""
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(url, api, messages=LONG)
    large = {"model": "openai/large", "api_key": KEY, "mock_response": "From the large model."}
    models: Any = [
        {"model_name": "small", "litellm_params": where(url, api)},
        {"model_name": "large", "litellm_params": large},
    ]
    router = litellm.Router(model_list=models, context_window_fallbacks=[{"small": ["large"]}], num_retries=0)
    answer: Any = router.completion("small", LONG, max_tokens=9)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "From the large model."
    with pytest.raises(litellm.BadRequestError):
        router.completion("small", [ASK], max_tokens=9, temperature=9)  # type: ignore[list-item]
