"""openai for Python, over both of its APIs."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.compat.conftest import CITY, FORMAT, FUNCTION, KEY, MODEL, PROMPT, THINKING, Person, judged

PACKAGE = "openai"
APIS = ["chat", "responses"]
ASK: Any = {"role": "user", "content": PROMPT}
TOOL: Any = {"type": "function", "function": {**FUNCTION, "strict": True}}
FLAT: Any = {"type": "function", **FUNCTION, "strict": True}
REQUIRED: Any = {"model": MODEL, "tool_choice": "required", "temperature": 0}


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)


def test_text(client: openai.OpenAI, api: str) -> None:
    if api == "chat":
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[ASK],
            max_completion_tokens=20,
            n=2,
            user="someone",
            metadata={"purpose": "test"},
            logprobs=True,
            top_logprobs=2,
            seed=1,
        )
        assert len(answer.choices) == 2 and answer.system_fingerprint and answer.choices[0].logprobs is not None
    else:
        assert client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=20).output_text


def test_object(client: openai.OpenAI, api: str) -> None:
    if api == "chat":
        parsed = client.chat.completions.parse(model=MODEL, messages=[ASK], response_format=Person)
        message = parsed.choices[0].message
        assert isinstance(message.parsed, Person) and message.refusal is None
        again: Any = [ASK, message, {"role": "user", "content": "And in short?"}]
        assert client.chat.completions.create(model=MODEL, messages=again, max_tokens=9).choices
    else:
        answer = client.responses.parse(model=MODEL, input=PROMPT, text_format=Person)
        assert isinstance(answer.output_parsed, Person)
        items: Any = [ASK, *answer.output, {"role": "user", "content": "And in short?"}]
        assert client.responses.create(model=MODEL, input=items, max_output_tokens=16).id


def test_streamed_object(client: openai.OpenAI, api: str) -> None:
    if api == "chat":
        usage: Any = {"stream_options": {"include_usage": True}}
        with client.chat.completions.stream(model=MODEL, messages=[ASK], response_format=Person, **usage) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"content.delta", "content.done"} <= kinds and final.usage is not None
        assert isinstance(final.choices[0].message.parsed, Person)
    else:
        with client.responses.stream(model=MODEL, input=PROMPT, text_format=Person) as events:
            assert {"response.output_text.delta", "response.completed"} <= {event.type for event in events}
            assert isinstance(events.get_final_response().output_parsed, Person)


def test_tool_results(client: openai.OpenAI, api: str) -> None:
    """Called with a stream, too: both are sent back as they came."""
    if api == "chat":
        tool: Any = openai.pydantic_function_tool(Person)
        fields: Any = {**REQUIRED, "messages": [ASK], "tools": [tool], "parallel_tool_calls": False}
        answer = client.chat.completions.parse(**fields)
        with client.chat.completions.stream(**fields) as stream:
            final = stream.get_final_completion()
        for message in (answer.choices[0].message, final.choices[0].message):
            (call,) = message.tool_calls or ()
            assert isinstance(call.function.parsed_arguments, Person)
            result = {"role": "tool", "tool_call_id": call.id, "content": "saved"}
            last: Any = [ASK, message, result]
            assert client.chat.completions.create(model=MODEL, messages=last, tools=[tool], max_tokens=9).choices
    else:
        fields = {**REQUIRED, "input": PROMPT, "tools": [FLAT], "parallel_tool_calls": False}
        called: Any = client.responses.create(**fields)
        (one,) = called.output
        judged("", [(one.name, one.arguments)])
        items: Any = [ASK, one, {"type": "function_call_output", "call_id": one.call_id, "output": "large"}]
        assert client.responses.create(model=MODEL, input=items, tools=[FLAT], max_output_tokens=16).id


def test_parallel_calls(client: openai.OpenAI, api: str) -> None:
    arguments = ['{"city": "Paris"}', '{"city": "Rome"}']
    if api == "chat":
        fields: Any = {**REQUIRED, "tools": [TOOL], "parallel_tool_calls": True, "max_tokens": 200}
        calls = client.chat.completions.create(messages=[ASK], **fields).choices[0].message.tool_calls
        judged("", [(call.function.name, call.function.arguments) for call in calls])
        two = [
            {"id": f"call_{place}", "type": "function", "function": {"name": "look_up", "arguments": one}}
            for place, one in enumerate(arguments)
        ]
        results = [{"role": "tool", "tool_call_id": f"call_{place}", "content": "large"} for place in range(2)]
        history: Any = [ASK, {"role": "assistant", "content": None, "tool_calls": two}, *results]
        assert client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=9).choices
    else:
        fields = {**REQUIRED, "tools": [FLAT], "parallel_tool_calls": True, "max_output_tokens": 200}
        answer = client.responses.create(input=PROMPT, **fields)
        judged("", [(item.name, item.arguments) for item in answer.output if item.type == "function_call"])
        items: list[Any] = [ASK]
        for place, one in enumerate(arguments):
            items.append({"type": "function_call", "call_id": f"call_{place}", "name": "look_up", "arguments": one})
        for place in range(2):
            items.append({"type": "function_call_output", "call_id": f"call_{place}", "output": "large"})
        assert client.responses.create(model=MODEL, input=items, tools=[FLAT], max_output_tokens=16).id


def test_error_results(client: openai.OpenAI, api: str) -> None:
    """Neither API has a field for it: the error is the text of the result."""
    if api == "chat":
        call = {"id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Pa'}}
        result = {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "Error: not JSON"}]}
        history: Any = [ASK, {"role": "assistant", "tool_calls": [call]}, result]
        assert client.chat.completions.create(model=MODEL, messages=history, tools=[TOOL], max_tokens=9).choices
    else:
        cut: Any = {"type": "function_call", "call_id": "call_0", "name": "look_up", "arguments": '{"city": "Pa'}
        output: Any = [{"type": "input_text", "text": "Error: not JSON"}]
        told: Any = {"type": "function_call_output", "call_id": "call_0", "output": output, "status": "incomplete"}
        assert client.responses.create(model=MODEL, input=[ASK, cut, told], max_output_tokens=16).id


def test_reasoning_echo(client: openai.OpenAI, api: str) -> None:
    if api == "chat":
        fields: Any = {"messages": [ASK], "max_tokens": 160, "extra_body": THINKING, "temperature": 0}
        message: Any = client.chat.completions.create(model=MODEL, **fields).choices[0].message
        assert message.reasoning_content is not None and message.content in ("yes", "no")
        history: Any = [ASK, message, ASK]
        assert client.chat.completions.create(model=MODEL, messages=history, max_tokens=9).choices
    else:
        extra = {"structured_outputs": THINKING["structured_outputs"]}
        given: Any = {"input": PROMPT, "max_output_tokens": 160, "extra_body": extra, "reasoning": {"effort": "low"}}
        answer = client.responses.create(model=MODEL, include=["reasoning.encrypted_content"], **given)
        assert answer.output[0].type == "reasoning" and answer.output_text in ("yes", "no", "")
        items: Any = [ASK, *answer.output, ASK]
        assert client.responses.create(model=MODEL, input=items, max_output_tokens=16).id


def test_tools_beside_an_object(client: openai.OpenAI, api: str) -> None:
    """Whole and streamed, which must be equal with one seed."""
    kinds = set()
    for seed in range(8):
        if api == "responses":
            text: Any = {"format": {"type": "json_schema", **FORMAT["json_schema"]}}  # type: ignore[dict-item]
            answer = client.responses.create(
                model=MODEL, input=PROMPT, tools=[FLAT], text=text, max_output_tokens=300, temperature=0.2 * seed
            )
            if answer.status == "completed":
                judged(
                    answer.output_text,
                    [(item.name, item.arguments) for item in answer.output if item.type == "function_call"],
                )
                kinds.add(answer.status)
            continue
        fields: Any = {"model": MODEL, "messages": [ASK], "tools": [TOOL], "response_format": FORMAT}
        fields |= {"seed": seed, "max_tokens": 300, "temperature": 2}
        choice = client.chat.completions.create(**fields).choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
        if choice.finish_reason != "length":
            judged(choice.message.content, calls)
            kinds.add(choice.finish_reason)
        content, arguments = "", ""
        for chunk in client.chat.completions.create(**fields, stream=True):
            delta = chunk.choices[0].delta
            content += delta.content or ""
            arguments += "".join(call.function.arguments for call in delta.tool_calls or ())
        assert (content, arguments) == (choice.message.content or "", "".join(one for _, one in calls))
    assert kinds


def test_legacy_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=5, logprobs=1)
    assert answer.choices[0].logprobs is not None and answer.system_fingerprint


def test_a_prompt_that_is_too_long(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    assert caught.value.code == "context_length_exceeded"


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[ASK])
    with pytest.raises(openai.BadRequestError):
        wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**CITY, "type": "nothing"}}}
        client.chat.completions.create(model=MODEL, messages=[ASK], response_format=wrong)
