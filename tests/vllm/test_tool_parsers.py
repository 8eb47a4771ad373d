"""Tool formats against vLLM's own parsers: the same calls come out of what our declaration spells.

`tests/deployments/test_tool_readers.py` reads the formats for which vLLM has no parser.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import vllm
from packaging.version import Version
from vllm.reasoning import ReasoningParserManager

from deployments.chat.thinking import FAMILIES, ReasoningParser
from deployments.chat.tool_formats import TOOL_FORMATS, ToolFormatName
from tests.deployments.judged_formats import JUDGED_BY_VLLM, THOUGHTS_NOT_JUDGED
from tests.vllm.tool_call_judge import (
    KINDS,
    Calls,
    Judge,
    calls_with,
    offered,
    pieces,
    read_by_us,
    request,
    spelled,
    tokenizer,
)

_LATER = Version(vllm.__version__) >= Version("0.32")

_DEEPSEEK = tuple(f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))
_KIMI = tuple(f"<|tool_{name}|>" for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_end")) + (
    "<|tool_call_argument_begin|>",
)
_COHERE = tuple(f"<|{end}_{name}|>" for end in ("START", "END") for name in ("ACTION", "THINKING", "RESPONSE"))

_QWEN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_SEED = ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>")
_NO_THOUGHTS = (("thinking", False), ("enable_thinking", False))

JUDGES = [
    Judge("hermes", "hermes", ("<tool_call>", "</tool_call>")),
    Judge("granite4", "hermes", ("<tool_call>", "</tool_call>")),
    Judge("llama3_json", "llama3", ("<|python_tag|>",)),
    Judge("mistral", "mistral_list", ("[TOOL_CALLS]",)),
    Judge("mistral", "mistral", ("[TOOL_CALLS]", "[ARGS]")),
    Judge("deepseek_v3", "deepseek_v3", _DEEPSEEK),
    Judge("deepseek_v31", "deepseek_v3_1", _DEEPSEEK),
    Judge("kimi_k2", "kimi_k2", (*_KIMI, "<think>", "</think>"), _NO_THOUGHTS),
    Judge("granite", "granite3", ("<|tool_call|>",)),
    Judge("phi4_mini_json", "functools"),
    *([] if _LATER else [Judge("cohere_command3", "cohere", _COHERE)]),  # vLLM 0.32 has it outside of its tool parsers
    Judge("jamba", "jamba", ("<tool_calls>", "</tool_calls>")),
    Judge("apertus", "apertus", ("<|tools_prefix|>", "<|tools_suffix|>")),
    Judge("longcat", "longcat", ("<longcat_tool_call>", "</longcat_tool_call>")),
    Judge("internlm", "internlm2", ("<|action_start|>", "<|plugin|>", "<|action_end|>")),
    Judge("granite-20b-fc", "granite_20b"),
    Judge("qwen3_coder", "qwen3_coder", _QWEN, _NO_THOUGHTS),
    Judge("seed_oss", "seed_oss", _SEED, _NO_THOUGHTS),
    Judge("glm45", "glm4_5", _QWEN, _NO_THOUGHTS),
    Judge("glm47", "glm4_7", _QWEN, _NO_THOUGHTS),
    Judge("minimax_m2", "minimax_m2", ("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>")),
    Judge("deepseek_v32", "deepseek_v3_2", ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    Judge("pythonic", "pythonic"),
    Judge("llama4_pythonic", "pythonic", ("<|python_start|>", "<|python_end|>")),
    Judge("functiongemma", "function_gemma", ("<start_function_call>", "<end_function_call>", "<escape>")),
    Judge("gemma4", "gemma4", ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")),
    Judge("lfm2", "lfm2", ("<|tool_call_start|>", "<|tool_call_end|>")),
    Judge("olmo3", "olmo3"),
    Judge("deepseek_v4", "deepseek_v4", ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<think>", "</think>")),
]

_MARKUP = "takes a marker inside of a string for the marker"
_MARKUP_PARSERS = ("qwen3_coder", "seed_oss", "glm45", "glm47", "minimax_m2", "deepseek_v32", "deepseek_v4")
_LINES = "drops line ends at the borders of a string, which the chat template does not put there"
_TOKENS = "does not tell the text of a special token inside of a string from the token"
_BRACKET = "takes the first `]` for the end of the list"
_PARTIAL = "sends the differences of JSON texts that it completes itself, which do not add up to the arguments"
_PARTIAL_KINDS = ("numbers", "nested", "quotes", "keys", "characters", "own")
_EMPTY = "gives the empty text for the arguments `{}` of the last call"
_POINT = "sends `1.0` for `1.5` where a token ends behind the point"
_ESCAPED = "reads strings alone, and those that are JSON as what they say; the chat template writes numbers as they are"
_BRACE = "takes a brace in a string for the end of the call"
_DIFFERENCES = "as whole, and sends differences of texts that do not go on from each other"
_GEMMA_STREAMED = ("none", "numbers", "nested", "quotes", "braces", "markup", "own")
_NESTED = "takes numbers and constants inside of objects and lists for strings"
_LINE_SEPARATOR = "takes U+2028 inside of a string for the end of a line"

WRONG: dict[tuple[str, str, str], str] = {
    ("hermes", "whole", "own"): _MARKUP,
    ("hermes", "stream", "own"): _MARKUP,
    ("granite4", "whole", "own"): _MARKUP,
    ("granite4", "stream", "own"): _MARKUP,
    **{(parser, reader, "own"): _MARKUP for parser in _MARKUP_PARSERS for reader in ("whole", "stream")},
    ("seed_oss", "whole", "lines"): _LINES,
    ("seed_oss", "stream", "lines"): _LINES,
    ("mistral", "whole", "own"): _TOKENS,
    ("deepseek_v3", "stream", "own"): _TOKENS,
    ("deepseek_v31", "whole", "own"): _TOKENS,
    ("deepseek_v31", "stream", "own"): _TOKENS,
    ("kimi_k2", "whole", "own"): _TOKENS,
    **{("jamba", "stream", kind): _PARTIAL for kind in _PARTIAL_KINDS},
    ("internlm", "stream", "own"): _PARTIAL,
    ("jamba", "stream", "none"): "gives the empty text for the arguments `{}` where another call follows",
    ("jamba", "whole", "own"): _MARKUP,
    ("internlm", "whole", "own"): _MARKUP,
    ("apertus", "whole", "own"): _MARKUP,
    ("apertus", "stream", "own"): _MARKUP,
    ("apertus", "stream", "nested"): "reads `2e+30` as 2e+33 where a token ends behind the first digit of the exponent",
    ("apertus", "stream", "characters"): "sends the first half of a pair of surrogates twice",
    ("longcat", "whole", "own"): _MARKUP,
    ("longcat", "stream", "own"): _MARKUP,
    ("granite-20b-fc", "whole", "own"): _MARKUP,
    ("granite-20b-fc", "stream", "none"): "gives the empty text for the arguments `{}` where another call follows",
    ("phi4_mini_json", "whole", "nested"): _BRACKET,
    ("phi4_mini_json", "whole", "braces"): _BRACKET,
    ("phi4_mini_json", "whole", "own"): _BRACKET,
    **{("phi4_mini_json", "stream", kind): "reads no streams" for kind in KINDS},
    ("cohere_command3", "whole", "none"): _EMPTY,
    ("cohere_command3", "stream", "none"): _EMPTY,
    **{(parser, "stream", "nested"): _POINT for parser in ("pythonic", "llama4_pythonic", "lfm2", "olmo3")},
    ("olmo3", "stream", "numbers"): _POINT,
    ("olmo3", "whole", "characters"): _LINE_SEPARATOR,
    ("olmo3", "stream", "characters"): _LINE_SEPARATOR,
    **{(parser, "whole", "own"): _MARKUP for parser in ("lfm2", "olmo3")},
    ("lfm2", "stream", "own"): _MARKUP,
    **{("functiongemma", "whole", kind): _ESCAPED for kind in ("numbers", "nested", "keys")},
    **{("functiongemma", "whole", kind): _BRACE for kind in ("braces", "own")},
    **{("functiongemma", "stream", kind): _DIFFERENCES for kind in _GEMMA_STREAMED},
    **{("gemma4", reader, "nested"): _NESTED for reader in ("whole", "stream")},
    **{("gemma4", reader, "own"): _MARKUP for reader in ("whole", "stream")},
    ("cohere_command3", "whole", "own"): _TOKENS,
    ("cohere_command3", "stream", "own"): _TOKENS,
}
if not _LATER:
    WRONG["granite", "stream", "none"] = "gives the empty text for the arguments `{}` where another call follows"
    WRONG |= {("internlm", "stream", kind): _PARTIAL for kind in _PARTIAL_KINDS}
"""Where vLLM's parser is wrong about what our reader gets right: by parser, way of reading and kind of arguments. An
entry that is not true any more fails."""

THINKERS = [
    ("kimi_k2", "kimi_k2", "<think>"),
    ("qwen3", "hermes", "<think>"),
    ("qwen3", "qwen3_coder", "<think>"),
    ("glm45", "glm4_5", "<think>"),
    ("glm47", "glm4_7", "<think>"),
    ("minimax_m2", "minimax_m2", "<think>"),
    ("seed_oss", "seed_oss", "<seed:think>"),
    ("mistral", "mistral", "[THINK]"),
]
"""vLLM's reader of thoughts, the format of calls, the beginning of thoughts."""

READERS: dict[str, Callable[[Judge, list[str], list[dict[str, Any]]], Calls]] = {
    "whole": Judge.read_whole,
    "stream": Judge.read_stream,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: f"{judge.parser}-{judge.tool_format}")
def test_the_same_calls_are_read(judge: Judge, reader: str, kind: str) -> None:
    rng = random.Random(f"{judge} {reader} {kind}")
    several = TOOL_FORMATS[judge.tool_format].several
    known, wrong = (judge.parser, reader, kind) in WRONG, 0
    for attempt in range(30):
        calls = calls_with(kind, judge.tool_format, rng, several and attempt % 2 == 1)
        parts = spelled(judge.tool_format, calls, rng)
        fed = ["".join(parts)] if reader == "whole" else [piece for piece, _ in pieces(tokenizer(judge.tokens), parts)]
        tools = offered(calls)
        assert read_by_us(judge.tool_format, fed, tools) == calls
        try:
            found = READERS[reader](judge, parts, tools)
        except ValueError:  # arguments that are no JSON
            found = []
        assert known or found == calls, "".join(parts)
        wrong += found != calls
    assert bool(wrong) == known


def test_formats_whose_calls_end_thoughts_are_judged() -> None:
    judged = {tool_format for _, tool_format, _ in THINKERS}
    ending = {name for name, tool_format in TOOL_FORMATS.items() if tool_format.ends_thoughts}
    assert judged == ending - THOUGHTS_NOT_JUDGED


def test_the_list_of_judged_formats_is_right() -> None:
    later = {"cohere"} if _LATER else set()
    assert {judge.tool_format for judge in JUDGES} == JUDGED_BY_VLLM - later


@pytest.mark.parametrize("kind", ["words", "quotes", "braces", "nested"])
@pytest.mark.parametrize(("parser", "name", "start"), THINKERS)
def test_a_call_that_ends_thoughts_is_one(parser: str, name: ToolFormatName, start: str, kind: str) -> None:
    rng = random.Random(f"{parser} {name} {kind}")
    (markers,) = (markers for markers in FAMILIES if markers.start == start)
    marks = next(judge.tokens for judge in JUDGES if judge.tool_format == name)
    one = tokenizer(tuple(dict.fromkeys((*marks, markers.start, markers.end))))
    for ended in (False, True):
        calls = calls_with(kind, name, rng, several=False)
        parts = spelled(name, calls, rng)
        parts[0] = f"Let me see: {markers.closes if ended else ''}{parts[0]}"
        ours = ReasoningParser(markers, TOOL_FORMATS[name].trigger)
        read = [ours.feed(piece) for piece, _ in pieces(one, parts)]
        thoughts, answer = ("".join(texts) for texts in zip(*read, strict=True))
        assert thoughts == "Let me see:"
        assert read_by_us(name, [answer], offered(calls)) == calls
        theirs = ReasoningParserManager.get_reasoning_parser(parser)(one)
        # Only this one of vLLM's readers wants to see the beginning of the thoughts, which stands in the prompt.
        text = (start if parser == "mistral" else "") + "".join(parts)
        reasoning, content = theirs.extract_reasoning(text, request(offered(calls)))
        assert (reasoning or "").strip() == thoughts
        assert (content or "").strip() == answer.strip()
