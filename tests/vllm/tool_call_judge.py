"""Answers with calls as our declarations spell them, read by our reader and by vLLM's parsers, whole and by tokens."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tool_formats import TOOL_FORMATS, ToolFormatName
from tests.vllm.server import MODEL

Calls = list[tuple[str, Any]]
"""Names and arguments."""


@dataclasses.dataclass(frozen=True)
class Judge:
    """One of vLLM's parsers for a format; `tokens` are special in the tokenizers of its models."""

    parser: str
    tool_format: ToolFormatName
    tokens: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    """What the chat template is told, where the parser has to know it."""

    def read_whole(self, parts: list[str], tools: list[dict[str, Any]]) -> Calls:
        """The calls in a finished answer."""
        found = self._parser(tools).extract_tool_calls("".join(parts), request(tools))
        return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]

    def read_stream(self, parts: list[str], tools: list[dict[str, Any]]) -> Calls:
        """The calls in an answer that comes token by token."""
        parser, asked = self._parser(tools), request(tools)
        calls: list[list[str]] = []
        before, ids_before = "", []
        for piece, ids in pieces(tokenizer(self.tokens), parts):
            text_now, ids_now = before + piece, ids_before + ids
            delta = parser.extract_tool_calls_streaming(before, text_now, piece, ids_before, ids_now, ids, asked)
            _add(calls, delta)
            before, ids_before = text_now, ids_now
        if hasattr(parser, "finish_streaming"):
            _add(calls, parser.finish_streaming())
        elif calls:
            calls[-1][1] += parser.get_remaining_unstreamed_args()
        return [(name, json.loads(arguments)) for name, arguments in calls]

    def _parser(self, tools: list[dict[str, Any]]) -> Any:
        options = {"chat_template_kwargs": dict(self.options)} if self.options else {}
        make = ToolParserManager.get_tool_parser(self.parser)
        return make(tokenizer(self.tokens), request(tools).tools, **options)


def _add(calls: list[list[str]], delta: Any) -> None:
    for call in (delta.tool_calls if delta is not None else None) or ():
        function = call.function if isinstance(call.function, dict) else call.function.model_dump()
        calls += [["", ""] for _ in range(len(calls), call.index + 1)]
        calls[call.index][0] += function.get("name") or ""
        calls[call.index][1] += function.get("arguments") or ""


def request(tools: list[dict[str, Any]]) -> ChatCompletionRequest:
    """What parsers want to know of a request."""
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=tools)


@functools.cache
def tokenizer(tokens: tuple[str, ...]) -> PreTrainedTokenizerBase:
    """The embedded model's, with special tokens more."""
    one = AutoTokenizer.from_pretrained(MODEL)
    one.add_special_tokens({"additional_special_tokens": list(tokens)})
    return one


def pieces(one: PreTrainedTokenizerBase, parts: list[str]) -> list[tuple[str, list[int]]]:
    """The text token by token; tokens that hold parts of a character come with the last of them.

    `parts` as `spelled` makes them: in arguments the names of special tokens are text.
    """
    found: list[tuple[str, list[int]]] = []
    waiting: list[int] = []
    tokens = [
        token
        for place, part in enumerate(parts)
        for token in one.encode(part, add_special_tokens=False, split_special_tokens=place % 2 == 1)
    ]
    for token in tokens:
        waiting.append(token)
        piece = one.decode(waiting, skip_special_tokens=False)
        if not piece.endswith("�"):
            found.append((piece, waiting))
            waiting = []
    assert "".join(piece for piece, _ in found) == "".join(parts)
    return found


def read_by_us(name: ToolFormatName, parts: list[str], tools: list[dict[str, Any]]) -> Calls:
    """The calls as we read them."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    parser = ToolCallParser(TOOL_FORMATS[name], 0, schemas=schemas)
    calls: list[list[str]] = []
    for delta in [delta for part in parts for delta in parser.feed(part)]:
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            else:
                calls[call["index"]][1] += call["function"]["arguments"]
    return [(name, json.loads(arguments)) for name, arguments in calls]


# -- calls to read ---------------------------------------------------------------------------------------------------


def _strings(*texts: str) -> Callable[[random.Random], Any]:
    return lambda rng: {"text": "".join(rng.choice(texts) for _ in range(rng.randrange(1, 5)))}


def _nested(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(5) if depth else 4
    if kind == 0:
        return [_nested(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    if kind < 3:
        return {f"k{index}": _nested(rng, depth - 1) for index in range(rng.randrange(1, 3))}
    return rng.choice([0, -3, 1.5, 2e30, True, False, None, "x", "a b"])


ARGUMENTS: dict[str, Callable[[random.Random], Any]] = {
    "words": _strings("Paris", " and ", "Rome", "-"),
    "none": lambda rng: {},
    "numbers": lambda rng: {"a": rng.randrange(-9, 99), "b": rng.random(), "c": 1e-7, "d": True, "e": None},
    "nested": lambda rng: {"value": {"a": _nested(rng)}, "list": [{"a": [1, {"b": "c"}]}, "d"]},
    "quotes": _strings('"', "'", "\\", '\\"', "a", "`"),
    "braces": _strings("{", "}", "[", "]", "}}", "{}", ",", ":", "a"),
    "keys": _strings('"name": "g"', '{"arguments": {}}', '", "parameters": ', "name"),
    "characters": _strings("é", "日本", "\u2028", "😀", "a"),
    "lines": _strings("\n", "\t", "a", "\n\n", "```", "\r"),
    "markup": _strings("<", ">", "</a>", "<|x|>", "&lt;", "a"),
}
"""What may be in the arguments of calls; each makes some."""

KINDS = (*ARGUMENTS, "own")


def calls_with(kind: str, name: ToolFormatName, rng: random.Random, several: bool) -> list[tuple[str, dict[str, Any]]]:
    """Calls of functions with such arguments; of the kind `own`: with texts of the format itself in strings."""
    tool_format = TOOL_FORMATS[name]
    names = [
        one for one in ("f", "get_weather", "a-b", "F_2", "name", "x" * 64) if re.fullmatch(tool_format.names, one)
    ]
    own = (tool_format.end, tool_format.closes, tool_format.trigger, tool_format.separator, tool_format.begin("f"))
    make = ARGUMENTS.get(kind, _strings(*own, "a"))
    return [(rng.choice(names), make(rng)) for _ in range(rng.randrange(2, 4) if several else 1)]


def offered(calls: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Functions that may be called so, as a request offers them."""
    schemas: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        properties = schemas.setdefault(name, {"type": "object", "properties": {}})["properties"]
        properties.update({key: _SCHEMAS[type(value)] for key, value in arguments.items()})
    return [{"type": "function", "function": {"name": name, "parameters": schemas[name]}} for name in sorted(schemas)]


_SCHEMAS: dict[type, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    # Where a list may hold anything, XGrammar takes no objects in it beside markup.
    list: {"type": "array", "items": {"type": ["object", "string"]}},
}


def spelled(name: ToolFormatName, calls: list[tuple[str, dict[str, Any]]], rng: random.Random) -> list[str]:
    """The answer as a model of the family writes it, cut around the arguments: every other part is arguments."""
    tool_format = TOOL_FORMATS[name]
    if tool_format.parameters is not None:
        return [tool_format.write([(function, json.dumps(arguments)) for function, arguments in calls])]
    frame = tool_format.write([(function, "\0") for function, _ in calls]).split("\0")
    values = [json.dumps(arguments, ensure_ascii=rng.random() < 0.3) for _, arguments in calls]
    return [part for pair in itertools.zip_longest(frame, values, fillvalue="") for part in pair]
