"""Formats that vLLM reads in part or not at all, against readers written from what is published."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tool_formats import TOOL_FORMATS, ToolFormatName
from tests.deployments.judged_formats import JUDGED_BY_VLLM, THOUGHTS_NOT_JUDGED
from tests.deployments.test_tool_calls import VALUES, cut, read

Calls = list[tuple[str, Any]]


def _behind(pattern: str, text: str) -> Calls:
    """A JSON value behind each match, whose first group is the function's name; nothing is looked for in values."""
    calls: Calls = []
    place = 0
    while found := re.compile(pattern).search(text, place):
        value, place = json.JSONDecoder().raw_decode(text, found.end())
        calls.append((found[1], value))
    return calls


def _listed(text: str, opens: str, closes: str) -> Calls:
    """A JSON list of calls between two texts."""
    inside = text[text.index(opens) + len(opens) : text.rindex(closes)]
    return [(call["name"], call["arguments"]) for call in json.loads(inside)]


def _lines(text: str) -> Calls:
    """A call in each line of JSON."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [(call["name"], call["arguments"]) for call in lines]


def _bare(text: str, begin: str, quote: str) -> Calls:
    """Gemma's calls: bare names, strings between quotes, other values as JSON."""

    def value(place: int) -> tuple[Any, int]:
        if text.startswith(quote, place):
            end = text.index(quote, place + len(quote))
            return text[place + len(quote) : end], end + len(quote)
        if text[place] == "[":
            items = []
            place += 1
            while text[place] != "]":
                item, place = value(place)
                items.append(item)
                place += text[place] == ","
            return items, place + 1
        if text[place] == "{":
            members = {}
            place += 1
            while text[place] != "}":
                colon = text.index(":", place)
                members[text[place:colon]], place = value(colon + 1)
                place += text[place] == ","
            return members, place + 1
        return json.JSONDecoder().raw_decode(text, place)

    calls: Calls = []
    place = 0
    while found := re.compile(re.escape(begin) + r"call:(\w+)").search(text, place):
        arguments, place = value(found.end())
        calls.append((found[1], arguments))
    return calls


READERS: dict[ToolFormatName, Callable[[str], Calls]] = {
    "mistral_call_id": lambda text: _behind(r"\[TOOL_CALLS\](\w+)\[CALL_ID\][a-zA-Z0-9]{9}\[ARGS\]", text),
    "harmony": lambda text: _behind(
        r"<\|channel\|>commentary to=functions\.(\w+) <\|constrain\|>json<\|message\|>", text
    ),
    "phi4_mini": lambda text: _listed(text, "<|tool_call|>", "<|/tool_call|>"),
    "minimax_m1": _lines,
    "functionary_v3_1": lambda text: _behind(r"<function=(\w+)>", text),
    "function_gemma": lambda text: _bare(text, "<start_function_call>", "<escape>"),
    "gemma4": lambda text: _bare(text, "<|tool_call>", '<|"|>'),
    "json": _lines,
    "turnstile": lambda text: _behind(r"<call:(\w+)>", text),
}


def test_every_format_has_a_second_reader() -> None:
    assert READERS.keys() | JUDGED_BY_VLLM == TOOL_FORMATS.keys()
    assert {name for name, tool_format in TOOL_FORMATS.items() if tool_format.ends_thoughts} >= THOUGHTS_NOT_JUDGED


@pytest.mark.parametrize("name", READERS)
def test_the_same_calls_are_read(name: ToolFormatName) -> None:
    tool_format, rng = TOOL_FORMATS[name], random.Random(name)
    for _ in range(40):
        values = rng.sample(VALUES, 1 if not tool_format.several else rng.randrange(1, 5))
        calls = [(f"f_{index}", value) for index, value in enumerate(values)]
        text = tool_format.write([(function, json.dumps(value)) for function, value in calls])
        _, found = read(ToolCallParser(tool_format, 1), cut(text, rng))
        assert READERS[name](text) == calls
        assert [(call["name"], json.loads(call["arguments"])) for call in found] == calls
