"""Tool calls of a real model: whatever it makes of the prompt, arguments match their schema."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from transformers import AutoTokenizer

from deployments.shipped import REPOSITORY
from tests.integration.server import Server
from tests.integration.traffic import PERSON, PROMPT

pytestmark = pytest.mark.anyio

EVENT = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["party", "meeting", "trip"]},
        "guests": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 3},
        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
    },
    "required": ["kind", "hour"],
    "additionalProperties": False,
}
SCHEMAS = {"save_person": PERSON, "plan_event": EVENT}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]


def checked(choice: Any) -> int:
    """How many calls a choice has; those of a finished one must match."""
    calls = choice.message.tool_calls or []
    if choice.finish_reason == "length":
        return 0
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    for call in calls:
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name], jsonschema.Draft202012Validator)
    return len(calls)


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    settings = {"model": "turnstile-tiny", "messages": PROMPT, "tools": TOOLS, "temperature": 1, "max_tokens": 200}
    return await client.chat.completions.create(**{**settings, **fields})


@pytest.mark.parametrize(
    "tool_choice", ["required", {"type": "function", "function": {"name": "plan_event"}}], ids=["required", "named"]
)
async def test_demanded_calls_match_their_schemas(client: openai.AsyncOpenAI, tool_choice: Any) -> None:
    fields = {"tool_choice": tool_choice, "parallel_tool_calls": False}
    answers = await asyncio.gather(*(ask(client, seed=seed, **fields) for seed in range(12)))
    counts = [checked(answer.choices[0]) for answer in answers]
    assert set(counts) <= {0, 1} and sum(counts) >= 8
    if tool_choice != "required":
        names = {call.function.name for answer in answers for call in answer.choices[0].message.tool_calls or ()}
        assert names == {"plan_event"}


async def test_free_calls_match_their_schemas(client: openai.AsyncOpenAI) -> None:
    """The model knows no tools: a bias makes it write the trigger now and then, token by token."""
    tokenizer = AutoTokenizer.from_pretrained(REPOSITORY / "models" / "turnstile-tiny")
    token_ids = tokenizer.encode("<call:", add_special_tokens=False)
    bias = dict(zip(map(str, token_ids), (20, 14, 12, 18), strict=True))
    fields = {"logit_bias": bias, "parallel_tool_calls": False}
    answers = await asyncio.gather(*(ask(client, seed=seed, **fields) for seed in range(12)))
    assert sum(checked(answer.choices[0]) for answer in answers) > 0


async def test_a_streamed_call_is_the_whole_one(client: openai.AsyncOpenAI) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 3, "temperature": 0}
    (choice,) = (await ask(client, **fields)).choices
    chunks = [chunk.choices[0] async for chunk in await ask(client, **fields, stream=True)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert calls[0].function.name == choice.message.tool_calls[0].function.name
    arguments = "".join(call.function.arguments for call in calls)
    assert arguments == choice.message.tool_calls[0].function.arguments
    assert chunks[-1].finish_reason == choice.finish_reason


async def test_a_conversation_goes_on_after_a_call(client: openai.AsyncOpenAI) -> None:
    named = {"type": "function", "function": {"name": "save_person"}}
    (choice,) = (await ask(client, tool_choice=named, temperature=0)).choices
    assert checked(choice) == 1 and choice.message.content is None
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "saved"}
    messages = [*PROMPT, choice.message.model_dump(exclude_none=True), result]
    (answer,) = (await ask(client, messages=messages, tool_choice="none", max_tokens=20)).choices
    assert answer.finish_reason in ("stop", "length") and answer.message.content is not None


async def test_a_tool_that_cannot_be_enforced_is_refused_at_its_place(client: openai.AsyncOpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a)\\1"}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "bad", "parameters": bad}}]
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, tools=tools)
    assert caught.value.body["pointer"] == "/tools/2/function/parameters/properties/a/pattern"  # type: ignore[index]
    assert caught.value.param == "tools"


def test_the_guide_is_right(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    guide = (REPOSITORY / "docs" / "tools.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    exec(example.replace("http://127.0.0.1:8000", server.url), {})
    name, arguments = capsys.readouterr().out.split(" ", 1)
    assert name == "save_person" and "'age': " in arguments
