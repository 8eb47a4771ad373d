"""Answers and streamed events of `/v1/messages` against the types of the package `anthropic`, without other fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.deployments.test_client_types import ANSWERS, BODIES, MESSAGES

pytestmark = pytest.mark.anyio
OURS = {"grammar"}
"""Fields that our answers have beside Anthropic's."""


def others(value: Any) -> Iterator[str]:
    """Names of the fields in a parsed answer that its types do not have."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        value = [getattr(value, name) for name in type(value).model_fields]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from others(inner)


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("texts", ANSWERS, ids=["text", "call", "cut call behind thoughts"])
async def test_answers_are_as_the_package_types_them(texts: list[str], reason: str) -> None:
    replica = FakeReplica()
    if "</think>" in "".join(texts):
        replica.chat_template, replica.generation_prompt = "</think>", "<think>\n"
    replica.say(*texts)
    replica.finish_reason = reason
    body = BODIES["messages"][1]
    async with client_of(application(FakeCompiler(), replica)) as http:
        whole = (await http.post(MESSAGES, json=body)).text
        lines = (await http.post(MESSAGES, json={**body, "stream": True})).text.splitlines()
    parsed: list[Any] = [TypeAdapter(Message).validate_json(whole, strict=True)]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    kinds: Any = TypeAdapter(RawMessageStreamEvent)
    parsed += [kinds.validate_json(event, strict=True) for event in events]
    assert {name for one in parsed for name in others(one)} <= OURS
    assert json.loads(events[-1])["type"] == "message_stop" and len(parsed) > 5
