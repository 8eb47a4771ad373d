"""Bombs: families of specifications that a few characters make large, each at most `--bytes` long.

    python -m tests.grammar_workers.bombs --seconds 1800 --seed 1

draws a family, its parameters and the options, compiles in a process of its own, finds a completion of at most 150
tokens and an example, and walks 20 tokens at random. Prints for each family the most CPU of one compilation, one
completion and one mask, and the most memory. Exit status 1 where one is beyond `--compile`, `--completion`, `--mask`
seconds of CPU or `--memory` MiB, or where anything but a `GrammarError` is raised.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from grammar_workers import GrammarError, GrammarOptions, compile_grammar, warm_up
from grammar_workers.keys import canonical_bytes, parse_specification
from tests.grammar_workers.vocabularies import bytes_vocabulary

Specification = dict[str, Any]
_TIMEOUT_S = 60

LOOKS = ["(?=ab.*cd)", "(?!abcd)", "(?=.*abc)", "(?<!ab.c)", "(?<=a.*b)", "(?=(?:a.*b){3})", r"\b", "(?!.*x.*y)"]
ATOMS = ["[a-z]", ".", "a", r"\w", "(?:ab|ba)", "[^a]", r"\p{L}", "(?i:ß)", "(a|b)*a(a|b){8}", "x{0,30}", "(?:a?){20}"]
LEAVES: list[Specification] = [
    {"type": "const_string", "value": "ab"},
    {"type": "regex", "pattern": "[a-z]+b"},
    {"type": "regex", "pattern": "(a|b)?"},
    {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"type": "grammar", "grammar": 'start: "a" start "b" | "c"'},
    {"type": "any_text", "excludes": ["abc"]},
    {"type": "any_text", "max_chars": 30},
    {"type": "any_text", "max_tokens": 30},
    {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
    {"type": "optional", "content": {"type": "const_string", "value": "c"}},
]
NUMBERS: list[Callable[[int], Any]] = [
    lambda i: float(f"{i + 1}e{i % 600 - 300}"),
    lambda i: 10**i % (10**300),
    lambda i: i * 1_000_003,
    lambda i: i / 997,
]
REFERRING: dict[str, Callable[[Any, random.Random], Any]] = {
    "items": lambda part, rng: {"type": "array", "items": part, "minItems": rng.choice([1, 2, 1000])},
    "prefix": lambda part, rng: {"type": "array", "prefixItems": [part] * 2, "minItems": 2, "items": False},
    "contains": lambda part, rng: {"type": "array", "contains": part, "minContains": 2},
    "unique": lambda part, rng: {"type": "array", "items": part, "minItems": 2, "uniqueItems": True},
    "properties": lambda part, rng: {"type": "object", "properties": {"a": part, "b": part}, "required": ["a", "b"]},
    "names": lambda part, rng: {"type": "object", "additionalProperties": part, "minProperties": 2},
    "patterns": lambda part, rng: {"type": "object", "patternProperties": {"^a": part, "b$": part}},
    "anyOf": lambda part, rng: {"anyOf": [part, {"type": "array", "items": part}]},
    "oneOf": lambda part, rng: {"oneOf": [part, {"type": "array", "items": part}]},
    "not": lambda part, rng: {"type": "array", "items": {"not": part}},
    "if": lambda part, rng: {"if": part, "then": {"items": part}, "else": {"type": "array", "items": part}},
}


def _regex(rng: random.Random, many: int) -> Specification:
    look, atom, tail = rng.choice(LOOKS), rng.choice(ATOMS), rng.choice(["", ".*", "[a-z]*"])
    unit = rng.choice([look, f"(?:{look}|{atom})", f"(?:{look}{atom})", f"(?:{atom}|{rng.choice(ATOMS)})", atom])
    unit += rng.choice(["", "*", "?", "{2,9}"])
    body = unit * many
    return {"type": "regex", "pattern": rng.choice(["{}", "({})*", "(?:{})?"]).format(body) + tail}


def _distinct_looks(rng: random.Random, many: int) -> Specification:
    kind = rng.choice(["(?=.*{})", "(?!{})", "(?!.*{})", "(?<!{}).", "(?:(?={})|.)", "(?:(?!{}).)*"])
    words = ["".join(rng.choices("abcd", k=rng.choice([2, 4, 8]))) for _ in range(many)]
    return {"type": "regex", "pattern": "".join(kind.format(word) for word in words) + ".*"}


def _choice(rng: random.Random, many: int) -> Specification:
    letters = rng.choice(["ab", "abcdefgh", "ßéa漢"])
    return {
        "type": "choice",
        "choices": list({"".join(rng.choices(letters, k=rng.choice([9, 90]))) for _ in range(many)}),
    }


def _chain(rng: random.Random, many: int) -> Specification:
    make = REFERRING[rng.choice(list(REFERRING))]
    definitions = {f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}, rng) for i in range(many)}
    definitions[f"d{many}"] = rng.choice([{"type": "integer"}, {"const": "a" * 99}, {"$ref": "#/$defs/d0"}, True])
    return {"type": "json_schema", "schema": {"$defs": definitions, "$ref": "#/$defs/d0"}}


def _numbers(rng: random.Random, many: int) -> Specification:
    values = [rng.choice(NUMBERS)(i) for i in range(many)]
    schemas: list[Callable[[], Any]] = [
        lambda: {"type": "number", "enum": values},
        lambda: {"type": "number", "not": {"enum": values}},
        lambda: {"oneOf": [{"type": "number", "minimum": value} for value in values]},
        lambda: {"anyOf": [{"type": "number", "multipleOf": abs(value) or 1} for value in values]},
        lambda: {"allOf": [{"type": "number", "not": {"const": value}} for value in values]},
        lambda: {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": len(set(values)) // 2},
    ]
    return {"type": "json_schema", "schema": rng.choice(schemas)()}


def _objects(rng: random.Random, many: int) -> Specification:
    names = [f"p{i}" for i in range(many)]
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    schema |= rng.choice([{}, {"minProperties": many // 2}, {"maxProperties": many // 2}, {"required": names[::2]}])
    schema |= rng.choice([{}, {"additionalProperties": False}, {"propertyNames": {"pattern": "(a|b)*a(a|b){9}|p"}}])
    schema |= rng.choice([{}, {"patternProperties": {f"{name}$": True for name in names[:40]}}])
    schema |= rng.choice([{}, {"dependentRequired": dict.fromkeys(names[::3], names[:3])}])
    keyword = rng.choice(["anyOf", "oneOf", "allOf", None])
    if keyword is not None:
        schema[keyword] = [{"required": rng.sample(names, min(2, many))} for _ in range(rng.choice([2, 8, 40]))]
    return {"type": "json_schema", "schema": schema}


def _patterns(rng: random.Random, many: int) -> Specification:
    patterns = [rng.choice(LOOKS) + rng.choice(ATOMS) * rng.randrange(1, 4) for _ in range(many)]
    part = rng.choice(
        [
            lambda pattern: {"pattern": pattern},
            lambda pattern: {"not": {"pattern": pattern}},
            lambda pattern: {"pattern": pattern, "maxLength": rng.choice([9, 1000, 10**6])},
        ]
    )
    keyword = rng.choice(["anyOf", "allOf", "oneOf"])
    return {"type": "json_schema", "schema": {"type": "string", keyword: [part(pattern) for pattern in patterns]}}


def _grammar(rng: random.Random, many: int) -> Specification:
    gbnf = rng.random() < 0.5
    colon = " ::= " if gbnf else ": "

    def following(i: int) -> str:
        return f"r{rng.choice([i + 1, i + 1, rng.randrange(many + 1)]) if i < many else i}"

    shapes: list[Callable[[int], str]] = [
        lambda i: f"{following(i)} {following(i)}",
        lambda i: f'{following(i)} {following(i)} | "a"',
        lambda i: f"({following(i)})? ({following(i)})*",
        lambda i: f'"a" {following(i)} | "a" {following(i)} "b" | "a"',
        lambda i: f'r{i} "a" | {following(i)}',
        lambda i: " | ".join(f'"{letter}" {following(i)}' for letter in "abcdefgh"),
        lambda i: " ".join(f"({following(i)})?" for _ in range(8)),
    ]
    shape = rng.choice(shapes)
    rules = [f"r{i}{colon}{shape(i)}" for i in range(many)]
    last = rng.choice(['"a"', '"(" r0 ")" | "x"', '("a" | "b")*'])
    begin = "root ::= r0" if gbnf else "start: r0"
    text = "\n".join([begin, *rules, f"r{many}{colon}{last}"])
    return {"type": "grammar", "syntax": "gbnf" if gbnf else "lark", "text": text}


def _tags(rng: random.Random, many: int) -> Specification:
    inner: Specification = rng.choice(LEAVES)
    for _ in range(min(many, rng.choice([3, 5, 40, 90]))):
        kind = rng.choice(["repeat", "star", "plus", "optional", "or", "sequence", "tag"])
        if kind == "repeat":
            inner = {"type": "repeat", "content": inner, "min": rng.choice([0, 3]), "max": rng.choice([9, 50, 1000])}
        elif kind in ("or", "sequence"):
            inner = {"type": kind, "elements": [inner, rng.choice(LEAVES)]}
        elif kind == "tag":
            inner = {"type": "tag", "begin": "<a>", "content": inner, "end": rng.choice(["</a>", ["</a>", "!"]])}
        else:
            inner = {"type": kind, "content": inner}
    return {"type": "structural_tag", "format": inner}


def _wide_tags(rng: random.Random, many: int) -> Specification:
    content = rng.choice(LEAVES)
    tags = [
        {"type": "tag", "begin": f"<f{i}>", "content": content, "end": rng.choice(["</f>", ""])} for i in range(many)
    ]
    triggers = rng.choice([["<f"], [tag["begin"] for tag in tags]])
    formats: list[Specification] = [
        {"type": "triggered_tags", "triggers": triggers, "tags": tags, "excludes": ["x" * 9, "<g"]},
        {"type": "tags_with_separator", "tags": tags, "separator": ","},
        {"type": "or", "elements": tags},
    ]
    return {"type": "structural_tag", "format": rng.choice(formats)}


def _bans(rng: random.Random, many: int) -> Specification:
    letters = rng.choice(["ab", "abcdeßİſK", "a漢é "])
    words = list({"".join(rng.choices(letters, k=rng.choice([3, 12, 60]))) for _ in range(many)})
    flags = {"whole_words": rng.random() < 0.5, "case_sensitive": rng.random() < 0.5}
    return {"type": "banned_words", "words": words, **flags}


def _all_of(rng: random.Random, many: int) -> Specification:
    makers = [_regex, _choice, _objects, _patterns, _grammar, _bans, _distinct_looks]
    some = [rng.choice(makers)(rng, max(1, many // 4)) for _ in range(rng.choice([2, 3]))]
    return {"type": "all_of", "specifications": some}


def _tool(rng: random.Random, many: int) -> Specification:
    """What a list of tools becomes: a tag for each, whose content is its schema."""
    schema = rng.choice([_objects, _chain, _numbers, _patterns])(rng, max(1, many // 8))["schema"]
    style = rng.choice(["json", "qwen_xml"])
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    if style == "qwen_xml":
        content["json_schema"] = {"type": "object", "properties": {"a": {"type": "string"}, "b": schema}}
    tags = [{"type": "tag", "begin": f"<call{i}>", "content": content, "end": "</call>"} for i in range(4)]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<call"], "tags": tags}}


FAMILIES: dict[str, Callable[[random.Random, int], Specification]] = {
    "regex": _regex,
    "looks": _distinct_looks,
    "choice": _choice,
    "chain": _chain,
    "numbers": _numbers,
    "objects": _objects,
    "patterns": _patterns,
    "grammar": _grammar,
    "tags": _tags,
    "wide tags": _wide_tags,
    "bans": _bans,
    "all of": _all_of,
    "tools": _tool,
}


def bomb(seed: int, most_bytes: int) -> tuple[str, Specification, GrammarOptions]:
    """A family, a specification of it that is not larger than that, and options to compile it with."""
    family = list(FAMILIES)[seed % len(FAMILIES)]
    many = random.Random(seed).choice([3, 10, 40, 60, 300, 1000, 5000])
    while True:
        rng = random.Random(seed)
        specification = FAMILIES[family](rng, many)
        if len(json.dumps(specification)) <= most_bytes or many == 1:
            break
        many //= 2
    options = GrammarOptions.model_validate(
        {
            "property_order": rng.choice(["declared", "any"]),
            "whitespace": rng.choice(["compact", "flexible"]),
            "escapes": rng.choice(["minimal", "any"]),
            "number_spelling": rng.choice(["plain", "any"]),
            "on_unsupported": rng.choice(["reject", "report"]),
            "format": rng.choice(["assert", "annotate"]),
        }
    )
    return family, specification, options


def cost(seed: int, most_bytes: int) -> dict[str, Any]:
    """CPU seconds of each part, by name, and the outcome."""
    _, specification, options = bomb(seed, most_bytes)
    found: dict[str, Any] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        begun = time.process_time()
        try:
            return function()
        except GrammarError as error:
            found.setdefault("outcome", error.code)
            return None
        finally:
            found[name] = max(found.get(name, 0.0), time.process_time() - begun)

    canonical_bytes(parse_specification(specification), 1 << 20)
    fsm = timed("compile", lambda: compile_grammar(specification, bytes_vocabulary(), options=options))
    if fsm is not None:
        found.setdefault("outcome", "compiled")
        timed("completion", lambda: fsm.shortest_completion(fsm.initial_state, 150))
        rng, state = random.Random(seed), fsm.initial_state
        for _ in range(20):
            allowed = timed("mask", functools.partial(fsm.allowed_tokens, state))
            if not allowed or (state := fsm.next_state(state, rng.choice(sorted(allowed)))) <= 0:
                break
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def _child(seed: int, most_bytes: int, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_TIMEOUT_S, _TIMEOUT_S))
    try:
        answer.send(cost(seed, most_bytes))
    except GrammarError as error:
        answer.send({"outcome": error.code})
    except BaseException as error:
        answer.send({"outcome": f"FAULT {type(error).__name__}: {error}"[:300]})


def _measured(seed: int, most_bytes: int) -> dict[str, Any]:
    """`cost` in a process of its own."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(seed, most_bytes, there))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        found = {"outcome": f"FAULT ended, or more than {_TIMEOUT_S} s of CPU"}
    process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="where to begin (default: 0)")
    parser.add_argument("--bytes", type=int, default=100_000, help="of a specification (default: 100,000)")
    parser.add_argument("--compile", type=float, default=4.0, help="CPU seconds, of two promised (default: 4)")
    parser.add_argument("--completion", type=float, default=4.0, help="CPU seconds (default: 4)")
    parser.add_argument("--mask", type=float, default=1.0, help="CPU seconds (default: 1)")
    parser.add_argument("--memory", type=float, default=4096, help="MiB (default: 4,096)")
    arguments = parser.parse_args()
    warm_up(bytes_vocabulary())
    bounds = {name: getattr(arguments, name) for name in ("compile", "completion", "mask", "memory")}
    worst: dict[str, dict[str, tuple[float, int]]] = collections.defaultdict(dict)
    outcomes: collections.Counter[str] = collections.Counter()
    failed = False
    seed, end = arguments.seed, time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        family = list(FAMILIES)[seed % len(FAMILIES)]
        found = _measured(seed, arguments.bytes)
        outcomes[found["outcome"].split(" ")[0]] += 1
        beyond = {name: round(found[name], 2) for name, bound in bounds.items() if found.get(name, 0.0) > bound}
        if beyond or found["outcome"].startswith("FAULT"):
            failed = True
            _, specification, options = bomb(seed, arguments.bytes)
            print(f"seed {seed} ({family}): {beyond} {found['outcome']}: {json.dumps(specification)[:300]} {options!r}")
            sys.stdout.flush()
        for name in bounds:
            worst[family][name] = max(worst[family].get(name, (0.0, 0)), (found.get(name, 0.0), seed))
        seed += 1
    print(f"{outcomes.total()} bombs from seed {arguments.seed} on: {dict(outcomes)}")
    for family, most in worst.items():
        print(f"{family:12}", *(f"{name} {value:8.2f} (seed {number})" for name, (value, number) in most.items()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
