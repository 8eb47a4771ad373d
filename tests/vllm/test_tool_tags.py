"""The structural tags of tool formats: XGrammar compiles them and takes what our declarations spell, and its own tags of
the same families take it, too."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import xgrammar

from deployments.chat.tool_formats import FORMATS, ToolFormatName
from deployments.chat.tool_formats.tags import answer_format
from tests.vllm.tool_call_judge import ARGUMENTS, calls_with, spelled

_COMPILER = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]))


def takes(tag: Any, text: str) -> bool:
    """Whether the tag allows this whole answer."""
    matcher = xgrammar.GrammarMatcher(_COMPILER.compile_structural_tag(tag), terminate_without_stop_token=True)
    return bool(matcher.accept_string(text)) and (matcher.is_terminated() or matcher.is_completed())


def tag_of(name: ToolFormatName, functions: set[str], **choice: bool) -> dict[str, Any]:
    """Our tag over functions that take any object."""
    schema = {"type": "object"}
    return {
        "type": "structural_tag",
        "format": answer_format(FORMATS[name], [(function, schema) for function in sorted(functions)], **choice),
    }


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("name", FORMATS)
def test_xgrammar_takes_what_is_spelled(name: Any, kind: str) -> None:
    rng = random.Random(f"{name} {kind}")
    for attempt in range(6):
        calls = calls_with(kind, name, rng, FORMATS[name].several and attempt % 2 == 1)
        text = "".join(spelled(name, calls, rng))
        functions = {function for function, _ in calls}
        for demanded in (False, True):
            assert takes(tag_of(name, functions, demanded=demanded, one=False), text), text
            assert takes(tag_of(name, functions, demanded=demanded, one=True), text) == (len(calls) == 1)
        assert not takes(tag_of(name, {"other"}, demanded=False, one=False), text)
        assert not takes(tag_of(name, functions, demanded=True, one=False), "No.")


THEIRS: dict[ToolFormatName, str] = {
    "hermes": "qwen_3",
    "llama3": "llama",
    "kimi_k2": "kimi",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v3_1": "deepseek_v3_1",
    "harmony": "harmony",
}
"""Names of XGrammar's own tags for these families."""
END_TOKENS: dict[ToolFormatName, str] = {"harmony": "<|call|>"}
"""What these hold as text and ours leave to the end token."""


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("name", THEIRS)
def test_their_tags_take_what_is_spelled(name: ToolFormatName, kind: str) -> None:
    rng = random.Random(f"{name} {kind} theirs")
    for attempt in range(6):
        calls = calls_with(kind, name, rng, FORMATS[name].several and attempt % 2 == 1)
        tools = [
            {"type": "function", "function": {"name": function, "parameters": {"type": "object"}}}
            for function in sorted({function for function, _ in calls})
        ]
        choice = {"tool_choice": "required", "reasoning": "disabled"}
        tag = xgrammar.get_model_structural_tag(THEIRS[name], tools, **choice)
        text = "".join(spelled(name, calls, rng)) + END_TOKENS.get(name, "")
        assert takes(tag, text), text
