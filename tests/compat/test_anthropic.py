"""anthropic for Python."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.compat.conftest import CITY, KEY, MODEL, PROMPT, SCHEMA, THINKING, Person, judged

PACKAGE = "anthropic"
APIS = ["messages"]
ASK: Any = {"role": "user", "content": PROMPT}
TOOL: Any = {"name": "look_up", "description": "Looks a city up.", "input_schema": CITY}
OUTPUT: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
SHORT: Any = {"model": MODEL, "max_tokens": 9, "tools": [TOOL], "tool_choice": {"type": "none"}}


@pytest.fixture
def client(root: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=root, api_key=KEY, max_retries=0)


def uses(content: Any) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in content if block.type == "tool_use"]


def test_text(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=[ASK], system="Be brief.")
    assert {block.type for block in answer.content} <= {"text"} and answer.stop_reason in ("end_turn", "max_tokens")
    counted = client.messages.count_tokens(model=MODEL, messages=[ASK], system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens > 0
    with client.messages.stream(model=MODEL, max_tokens=30, messages=[ASK]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    # The toy model may end at once, and Anthropic's answer has no block then.
    assert [block.type for block in final.content] == (["text"] if "text" in kinds else [])
    assert final.stop_reason is not None and final.usage.output_tokens > 0


def test_object(client: anthropic.Anthropic) -> None:
    fields: Any = {"messages": [ASK], "output_config": OUTPUT}
    answer: Any = client.messages.create(model=MODEL, max_tokens=400, **fields)
    assert answer.stop_reason == "end_turn"
    Person.model_validate_json(answer.content[0].text)
    history: Any = [ASK, {"role": "assistant", "content": answer.content}, ASK]
    assert client.messages.create(model=MODEL, max_tokens=9, messages=history).stop_reason


def test_streamed_object(client: anthropic.Anthropic) -> None:
    fields: Any = {"messages": [ASK], "output_config": OUTPUT}
    with client.messages.stream(model=MODEL, max_tokens=400, **fields) as stream:
        Person.model_validate_json("".join(stream.text_stream))


def test_tool_results(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 400, "tools": [TOOL], "messages": [ASK]}
    fields["tool_choice"] = {"type": "tool", "name": "look_up", "disable_parallel_tool_use": True}
    answer = client.messages.create(**fields)
    assert answer.stop_reason == "tool_use"
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    for one in (answer, final):
        (call,) = one.content
        judged("", uses(one.content))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "large"}  # type: ignore[union-attr]
        thanks = {"role": "user", "content": [result, {"type": "text", "text": "Thanks."}]}
        history: Any = [ASK, {"role": "assistant", "content": one.content}, thanks]
        last = client.messages.create(messages=history, **SHORT)
        assert last.stop_reason in ("end_turn", "max_tokens")


def two_calls(*results: dict[str, Any]) -> Any:
    calls = [
        {"type": "tool_use", "id": f"toolu_{place}", "name": "look_up", "input": {"city": city}}
        for place, city in enumerate(("Paris", "Rome"))
    ]
    told = [{"type": "tool_result", "tool_use_id": f"toolu_{place}", **result} for place, result in enumerate(results)]
    return [ASK, {"role": "assistant", "content": calls}, {"role": "user", "content": told}]


def test_parallel_calls(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 200, "tools": [TOOL], "tool_choice": {"type": "any"}}
    judged("", uses(client.messages.create(messages=[ASK], **fields).content))
    assert client.messages.create(messages=two_calls({"content": "large"}, {"content": "old"}), **SHORT).stop_reason


def test_error_results(client: anthropic.Anthropic) -> None:
    failed = {"is_error": True, "content": [{"type": "text", "text": "No such city."}]}
    assert client.messages.create(messages=two_calls(failed, {"is_error": True}), **SHORT).stop_reason


def test_reasoning_echo(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    extra = {"structured_outputs": THINKING["structured_outputs"]}
    fields: Any = {"model": MODEL, "max_tokens": 160, "thinking": thinking}
    answer: Any = client.messages.create(messages=[ASK], extra_body=extra, **fields)
    assert answer.content[0].type == "thinking"
    assert answer.stop_reason == "max_tokens" or answer.content[-1].text in ("yes", "no")
    history: Any = [ASK, {"role": "assistant", "content": answer.content}, ASK]
    assert client.messages.create(model=MODEL, max_tokens=9, messages=history).stop_reason


def test_tools_beside_an_object(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model=MODEL, messages=[ASK], max_tokens=300, tools=[TOOL], output_config=OUTPUT)
    judged("".join(block.text for block in answer.content if block.type == "text"), uses(answer.content))


def test_a_stop_sequence(client: anthropic.Anthropic) -> None:
    wanted: Any = {"regex": "[ab]{2}c[ab]{2}"}
    fields: Any = {"stop_sequences": ["q"], "extra_body": {"structured_outputs": wanted}}
    answer = client.messages.create(model=MODEL, max_tokens=20, messages=[ASK], **fields)
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=5, messages=[ASK])
    with pytest.raises(anthropic.BadRequestError) as caught:
        schema: Any = {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}
        client.messages.create(model=MODEL, max_tokens=5, messages=[ASK], output_config=schema)
    body: Any = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=MODEL, messages=[{**ASK, "content": "word " * 5000}], max_tokens=9)
