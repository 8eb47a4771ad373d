"""Bodies made hostile: valid ones of every endpoint with something put, taken out, doubled, or swapped."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from deployments.http.examples import EXAMPLES
from tests.hostile.many_errors import CHAT, GRAMMARS, RESPONSES, TEXT

MESSAGES = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": "Who?", "name": "ann"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "done"},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "done"},
]
TAG = {"begin": "<a>", "content": {"type": "regex", "pattern": "[a-z]"}, "end": "</a>"}
SPECIFICATION = {
    "type": "all_of",
    "specifications": [
        {"type": "structural_tag", "tags": [TAG], "triggers": ["<a>"]},
        {"type": "banned_words", "words": ["x"], "whole_words": True},
    ],
}
FORMAT = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<a>"],
        "tags": [{"begin": "<a>", "content": {"type": "const_string", "value": "b"}, "end": ["</a>"]}],
    },
}


def valid_bodies() -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies: those of the documentation, and some that have what these leave out."""
    bodies = [(path, one["value"]) for path in (CHAT, TEXT, RESPONSES, GRAMMARS) for one in EXAMPLES[path].values()]
    return [
        *bodies,
        (CHAT, {"messages": MESSAGES, "logit_bias": {"5": -1}, "stop": ["a"], "metadata": {"a": "b"}, "n": 2}),
        (CHAT, {"messages": MESSAGES, "structured_outputs": {"structural_tag": json.dumps(FORMAT)}}),
        (CHAT, {"messages": MESSAGES, "response_format": FORMAT}),
        (RESPONSES, {"input": ITEMS, "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}),
        (
            RESPONSES,
            {"input": ITEMS, "text": {"format": FORMAT, "verbosity": "medium"}, "reasoning": {"summary": "auto"}},
        ),
        (GRAMMARS, {"specification": SPECIFICATION}),
        (GRAMMARS, {"specification": {"type": "positions", "allowed": [["a", "b"], [1, 2]]}}),
    ]


class Raw(str):
    """A part of a JSON text as it is to be sent, JSON or not."""


class Twice(dict[str, Any]):
    """An object that is sent with its first key a second time."""


SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1.0, 16, 17, 1e308, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63),
    *(-(2**63), 2**64, 10**30, 10**4000, Raw("1e999"), Raw("-1e999"), Raw("1" * 5000), Raw("NaN"), Raw("Infinity")),
    *(
        "",
        "a",
        "0",
        "text",
        "json_schema",
        "auto",
        "none",
        "null",
        "\0",
        "\n",
        "é" * 3,
        "\U0001f600",
        "ﬀ\u2028",
        "../..",
    ),
    *("a" * 1000, "{", "[" * 1000, "(" * 1000, "a{1000000}", "{{ 1 }}", "$ref", "0" * 64),
    *(Raw('"\\ud800"'), Raw('"\\x"'), Raw("01"), Raw("+1"), Raw("'a'"), Raw("undefined"), Raw("")),
]
SMALL: list[Any] = [
    *([], {}, [None], [[]], [{}], [0], [1, "a"], ["a"], {"a": 1}, {"": ""}, {"type": "text"}, {"type": "json_schema"}),
    *({"type": "json_schema", "json_schema": {}}, {"type": "regex", "regex": 1}, {"$ref": "#"}, {"role": "user"}),
]
NAMES = [
    "a",
    "type",
    "",
    "é",
    "a.b",
    "a[0]",
    '"',
    "\0",
    "k" * 300,
    "$ref",
    "__class__",
    "model_config",
    "schema",
    "json",
]
LARGE: list[Callable[[random.Random], Any]] = [
    lambda rng: "x" * rng.choice([10_000, 300_000]),
    lambda rng: [{}] * rng.choice([200, 20_000]),
    lambda rng: [rng.choice(SMALL)] * rng.choice([200, 5_000]),
    lambda rng: {f"k{number}": rng.choice(SCALARS[:10]) for number in range(rng.choice([100, 10_000]))},
    lambda rng: nested("[", "]", rng),
    lambda rng: nested('{"items":', "}", rng),
    lambda rng: nested('{"type":"all_of","specifications":[', "]}", rng),
    lambda rng: nested('{"not":', "}", rng),
]


def nested(begin: str, end: str, rng: random.Random) -> Raw:
    """Something in something in something."""
    depth = rng.choice([30, 60, 90, 150, 400])
    return Raw(begin * depth + "true" + end * depth)


def dumps(value: Any) -> str:
    """JSON with what no JSON library writes."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        pairs = [f"{json.dumps(name)}:{dumps(inner)}" for name, inner in value.items()]
        return "{" + ",".join([*pairs, *(pairs[:1] if isinstance(value, Twice) else [])]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value and key of it."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def mutated(body: dict[str, Any], rng: random.Random, *, large: bool) -> Any:
    """The body with one to three changes."""
    body = copy.deepcopy(body)
    whole = {"body": body}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        container, key = rng.choice(list(places(whole)))
        value = container[key]
        match rng.randrange(9):
            case 0 | 1 | 2:
                container[key] = rng.choice(SCALARS)
            case 3:
                container[key] = copy.deepcopy(rng.choice(SMALL))
            case 4:
                container[key] = rng.choice(LARGE)(rng) if large else [value]
            case 5:
                del container[key]
            case 6 if isinstance(value, dict):
                value[rng.choice(NAMES)] = copy.deepcopy(rng.choice([*SCALARS, *SMALL]))
            case 7 if isinstance(value, dict) and value:
                container[key] = Twice(value)
            case _:
                container[key] = [value] * rng.choice([0, 2, 20])
        if "body" not in whole:
            return {}
    return whole["body"]


def hostile_bodies(rng: random.Random, *, large: bool = False) -> Iterator[tuple[str, bytes, Any]]:
    """Paths, texts and their values, without end."""
    bodies = valid_bodies()
    while True:
        path, body = rng.choice(bodies)
        changed = mutated(body, rng, large=large)
        yield path, dumps(changed).encode(), changed
