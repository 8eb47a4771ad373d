"""The structural tags of tool formats: XGrammar takes what our declarations spell by them and by its own tags."""

from __future__ import annotations

import random
from typing import Any

import pytest
import vllm.parser.harmony  # noqa: F401  # it registers its tag
import xgrammar
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag

from deployments.chat.tool_formats import TOOL_FORMATS, ToolFormatName
from deployments.chat.tool_formats.tags import WantedCalls, answer_format
from tests.vllm.tool_call_judge import ARGUMENTS, calls_with, offered, spelled

_COMPILER = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]))


def takes(tag: Any, text: str) -> bool:
    """Whether the tag allows this whole answer."""
    matcher = xgrammar.GrammarMatcher(_COMPILER.compile_structural_tag(tag), terminate_without_stop_token=True)
    return bool(matcher.accept_string(text)) and (matcher.is_terminated() or matcher.is_completed())


def tag_of(name: ToolFormatName, tools: list[dict[str, Any]], **choice: bool) -> dict[str, Any]:
    """Our tag over these functions."""
    functions = [(tool["function"]["name"], tool["function"]["parameters"]) for tool in tools]
    return {
        "type": "structural_tag",
        "format": in_styles(answer_format(TOOL_FORMATS[name], WantedCalls(functions, **choice))),
    }


STYLES = {
    "<parameter=": "qwen_xml",
    "<parameter name=": "minimax_xml",
    "<arg_key>": "glm_xml",
    "<｜DSML｜": "deepseek_xml",
}


def in_styles(part: Any) -> Any:
    """Our format with markup in the styles of XGrammar."""
    if isinstance(part, list):
        return [in_styles(one) for one in part]
    if not isinstance(part, dict) or part.get("type") == "object":
        return part
    if part["type"] == "parameters":
        style = next(STYLES[begin] for begin in STYLES if part["element"].startswith(begin))
        return {"type": "json_schema", "json_schema": part["json_schema"], "style": style}
    return {name: in_styles(one) for name, one in part.items()}


def is_known(name: ToolFormatName) -> bool:
    """Whether XGrammar has such arguments: not those in Python's notation."""
    parameters = TOOL_FORMATS[name].parameters
    return parameters is None or parameters.notation == "plain"


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if is_known(name)])
def test_xgrammar_takes_what_is_spelled(name: Any, kind: str) -> None:
    rng = random.Random(f"{name} {kind}")
    for attempt in range(6):
        calls = calls_with(kind, name, rng, TOOL_FORMATS[name].several and attempt % 2 == 1)
        text = "".join(spelled(name, calls, rng))
        functions = offered(calls)
        for demanded in (False, True):
            assert takes(tag_of(name, functions, demanded=demanded, one=False), text), text
            assert takes(tag_of(name, functions, demanded=demanded, one=True), text) == (len(calls) == 1)
        assert not takes(tag_of(name, offered([("other", {})]), demanded=False, one=False), text)
        assert not takes(tag_of(name, functions, demanded=True, one=False), "No.")


THEIRS: dict[ToolFormatName, str] = {
    "hermes": "qwen_3",
    "llama3": "llama",
    "kimi_k2": "kimi",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v3_1": "deepseek_v3_1",
}
"""Names of XGrammar's own tags for these families."""


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("name", THEIRS)
def test_their_tags_take_what_is_spelled(name: ToolFormatName, kind: str) -> None:
    rng = random.Random(f"{name} {kind} theirs")
    for attempt in range(6):
        calls = calls_with(kind, name, rng, TOOL_FORMATS[name].several and attempt % 2 == 1)
        text = "".join(spelled(name, calls, rng))
        choice = {"tool_choice": "required", "reasoning": "disabled"}
        assert takes(xgrammar.get_model_structural_tag(THEIRS[name], offered(calls), **choice), text), text


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_vllms_tag_takes_harmony(kind: str) -> None:
    """XGrammar's own has no space before `<|constrain|>`, where OpenAI's guide to the format has one."""
    rng = random.Random(f"{kind} harmony")
    for _ in range(6):
        calls = calls_with(kind, "harmony", rng, several=False)
        text = "".join(spelled("harmony", calls, rng))
        tools = [ChatCompletionToolsParam.model_validate(tool) for tool in offered(calls)]
        assert takes(get_model_structural_tag("harmony", tools, "required", reasoning=False), text), text
