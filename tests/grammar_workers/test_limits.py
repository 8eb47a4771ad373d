"""Budgets: each limit can be reached and is named, and no specification buys unbounded work.

Work is counted in Python calls, not in seconds: the bound is the same on every machine.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from grammar_workers import GrammarError, GrammarOptions, Limits, compile_grammar
from grammar_workers.budget import Budget, running
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.tags import leaves
from tests.grammar_workers.call_limit import TooMuchWorkError, at_most
from tests.grammar_workers.hostile_specifications import hostile_specification
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

MOST_CALLS = 8_000_000
"""Python and C calls of one compilation at default limits: some seconds on a slow machine."""


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


def regex(pattern: str) -> dict[str, Any]:
    return {"type": "regex", "pattern": pattern}


def nested(levels: int, wrap: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def array_of(schema: Any) -> Any:
    return {"type": "array", "items": schema}


def resources(many: int, anchor: Callable[[int], str]) -> dict[str, Any]:
    """Schema resources that lead to each other on many ways, each with a dynamic anchor and a dynamic reference."""

    def resource(i: int) -> Any:
        links = {f"p{j}": {"$ref": f"urn:r{j}"} for j in range(many)}
        dynamic = {f"d{j}": {"$ref": f"urn:r{j}#/$defs/dynamic"} for j in range(many)}
        return {
            "$id": f"urn:r{i}",
            "$dynamicAnchor": anchor(i),
            "type": "object",
            "properties": links | dynamic,
            "$defs": {"dynamic": {"$dynamicRef": f"#{anchor(i)}"}},
        }

    return {"$ref": "urn:r0", "$defs": {f"r{i}": resource(i) for i in range(many)}}


def either(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


def definitions(many: int, make: Callable[[int, str], Any], last: Any = True) -> dict[str, Any]:
    """`many` definitions, each made from its number and a reference to the next one; the last one is `last`."""
    found = {f"d{i}": make(i, f"#/$defs/d{i + 1}") for i in range(many)}
    return {"$defs": {**found, f"d{many}": last}, "$ref": "#/$defs/d0"}


def members(names: list[str], **keywords: Any) -> dict[str, Any]:
    """An object whose properties have these names and are numbered."""
    return {"type": "object", "properties": {name: {"const": i} for i, name in enumerate(names)}, **keywords}


def distinct(items: Any, **keywords: Any) -> dict[str, Any]:
    """An array of items that differ."""
    return {"type": "array", "items": items, "uniqueItems": True, **keywords}


def pair_of(schema: Any) -> dict[str, Any]:
    """An object of two properties."""
    properties = {"a": schema, "b": schema}
    return {"type": "object", "properties": properties, "required": ["a", "b"], "additionalProperties": False}


NAMES = [f"name{number}" for number in range(10_000)]


# -- each limit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "specification"),
    [
        ({"max_specification_bytes": 100}, json_schema({"enum": ["a" * 100]})),
        ({"max_specification_bytes": 100}, regex("a" * 100)),
        ({"max_specification_bytes": 100}, {"type": "choice", "choices": ["a" * 100]}),
        ({"max_nesting": 5}, json_schema(nested(7, array_of, True))),
        ({"max_nesting": 5}, json_schema(nested(7, either, True))),
        ({"max_nesting": 5}, regex("(" * 6 + "a" + ")" * 6)),
        ({"max_nesting": 5}, json_schema({"pattern": "(" * 6 + "a" + ")" * 6})),
        ({"max_states": 50}, json_schema({"enum": NAMES[:50]})),
        ({"max_states": 50}, {"type": "choice", "choices": NAMES[:50]}),
        ({"max_states": 50}, regex("a{51}")),
        ({"max_states": 50}, json_schema({"type": "object", "properties": dict.fromkeys(NAMES[:20], True)})),
        ({"max_regex_states": 20}, regex("a{30}")),
        ({"max_regex_states": 20}, json_schema({"pattern": "a.{6}$"})),
        ({"max_regex_states": 20}, json_schema({"propertyNames": {"minLength": 30, "pattern": "^a"}})),
        ({"max_steps": 200}, json_schema({"type": "object", "properties": dict.fromkeys(NAMES[:200], True)})),
        ({"max_steps": 200}, json_schema({"enum": NAMES[:200]})),
        ({"max_steps": 200}, {"type": "choice", "choices": NAMES[:200]}),
        ({"max_steps": 200}, regex("[ab]{300}")),
    ],
)
def test_each_limit_is_named_when_it_is_reached(limit: dict[str, int], specification: dict[str, Any]) -> None:
    assert compile_grammar(specification, bytes_vocabulary()).allowed_tokens(1)
    with pytest.raises(LimitExceededError) as caught:
        compile_grammar(specification, bytes_vocabulary(), limits=Limits(**limit))
    assert next(iter(limit)) in caught.value.message
    assert caught.value.code == "grammar_limit_exceeded"


def test_limits_do_not_change_the_language() -> None:
    specification = json_schema({"type": "object", "properties": {"a": {"pattern": "^(ab)*$", "maxLength": 9}}})
    tight = Limits(max_nesting=4, max_states=4000, max_regex_states=100, max_steps=20_000)
    plenty = compile_grammar(specification, bytes_vocabulary())
    little = compile_grammar(specification, bytes_vocabulary(), limits=tight)
    assert little.to_bytes() == plenty.to_bytes()


# -- bombs -----------------------------------------------------------------------------------------------------------

COMPILED: dict[str, dict[str, Any]] = {
    "(a+)+b": regex("(a+)+b"),
    "(a*)*": regex("((a*)*)*b"),
    "(a|a)*": regex("(a|a|a|a)*b"),
    "(a|aa)+": regex("(a|aa)+$"),
    "(a?){n}a{n}": regex("(a?){200}a{200}"),
    "a{2000}": regex("a{2000}"),
    "long alternation": regex("|".join(NAMES[:1000])),
    "a count that is not written out": regex(".{2,100000}"),
    "a counted group": regex("^(?:ab|c){100000}$"),
    "password rules": regex(r"^(?=.*[A-Z])(?=.*\d)(?=.*[a-z])(?=.*[^A-Za-z0-9]).{8,64}$"),
    "a choice of a long text": {"type": "choice", "choices": ["a" * 100_000]},
    "enum of 10,000": json_schema({"enum": NAMES}),
    "choice of 10,000": {"type": "choice", "choices": NAMES},
    "enum of a long text": json_schema({"enum": ["a" * 100_000]}),
    "enum of numbers": json_schema({"enum": list(range(5000))}),
    "10,000 properties": json_schema({"type": "object", "properties": {name: {"type": "integer"} for name in NAMES}}),
    "10,000 required": json_schema({"type": "object", "properties": dict.fromkeys(NAMES, True), "required": NAMES}),
    "maxLength": json_schema({"type": "string", "minLength": 50_000, "maxLength": 100_000}),
    "maxLength and pattern": json_schema({"type": "string", "maxLength": 100_000, "pattern": "^(ab|c)*$"}),
    "maxItems": json_schema({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000}),
    "minItems": json_schema({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    "maxItems of 5,000": json_schema({"type": "array", "items": {"enum": [1, 2]}, "minItems": 4000, "maxItems": 5000}),
    "100 kB": json_schema(
        definitions(450, lambda i, ref: {"type": "object", "properties": {f"p{i}{c}": {"$ref": ref} for c in "abcdef"}})
    ),
    "anyOf 90 deep": json_schema(nested(90, either, {"type": "string"})),
    "arrays 90 deep": json_schema(nested(90, array_of, {"type": "string"})),
    "anyOf of 200": json_schema(
        {"anyOf": [{"properties": {"k": {"const": name}}, "required": ["k"]} for name in NAMES[:200]]}
    ),
    "recursion with anyOf": json_schema(
        {
            "anyOf": [
                {"type": "integer"},
                *({"type": "array", "prefixItems": [{"const": i}, {"$ref": "#"}]} for i in range(50)),
            ]
        }
    ),
    "mutual recursion": json_schema(
        definitions(200, lambda i, ref: {"properties": {"next": {"$ref": ref}}}, last={"$ref": "#/$defs/d0"})
    ),
    "many references": json_schema(
        {"$defs": {"s": {"maxLength": 100}}, "properties": {name: {"$ref": "#/$defs/s"} for name in NAMES[:2000]}}
    ),
}
"""What looks dangerous and must simply work, within the bound."""


@pytest.mark.parametrize("name", COMPILED)
def test_large_specifications_compile_within_the_bound(name: str) -> None:
    with at_most(MOST_CALLS):
        fsm = compile_grammar(COMPILED[name], bytes_vocabulary())
    assert fsm.allowed_tokens(fsm.initial_state)


@pytest.mark.parametrize("property_order", ["declared", "any"])
def test_nesting_costs_what_was_visited(property_order: str) -> None:
    """Twice the depth, twice the memory, and nothing before it is visited."""
    options = GrammarOptions.model_validate({"property_order": property_order})
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}
    fsm = compile_grammar(json_schema(schema), bytes_vocabulary(), options=options)
    sizes = [fsm.nbytes]
    state = fsm.initial_state
    for _ in range(2):
        for token in (bytes_vocabulary().encode(b'{"b": ') or []) * 500:
            state = fsm.next_state(state, token)
            assert state >= 0
        sizes.append(fsm.nbytes)
    assert sizes[0] < 200_000
    assert sizes[2] - sizes[1] < 2 * (sizes[1] - sizes[0])
    assert sizes[2] < 1000 * 10_000


BOMBS: dict[str, dict[str, Any]] = {
    "100k groups": regex("(" * 100_000 + "a" + ")" * 100_000),
    "open groups": regex("(" * 100_000),
    "groups at the limit": regex("(" * 200 + "a" + ")" * 200),
    "100k groups in a schema": json_schema({"pattern": "(" * 100_000 + "a" + ")" * 100_000}),
    "nested counts": regex("((a{0,100}){0,100}){0,100}"),
    "nested counts of nothing": regex("((((){1000}){1000}){1000}){1000}"),
    "a huge count": regex("a{1000000}"),
    "a count beyond all": regex("a{99999999999999999999}"),
    "a?{5000}": regex("(a?){5000}"),
    "a{15000}": regex("a{15000}"),
    "exponential": regex(r"[\s\S]*a[\s\S]{40}"),
    ".*a.{20}": regex(".*a.{20}"),
    "counts in counts": regex("((a{100}){10}){100}"),
    "exponential look-ahead": regex("(?:(?=.*a.{9})(?=.*b.{11})(?!.*c.{13}).)*"),
    "look-aheads in look-aheads": regex("(?=" * 90 + "a" + ")" * 90 + "a"),
    "many look-behinds": regex("".join(f"(?<=.{{{n}}}a|b.{{{n}}})[abc]?" for n in range(8))),
    "many word boundaries": regex(r"(?:\b|\B|\w)*" * 50),
    "NUL": regex("a\0b"),
    "exponential product": json_schema(
        {"anyOf": [{"type": "string", "pattern": f"{c}.{{{n}}}$"} for c in "abc" for n in (5, 6, 7)]}
    ),
    "many lengths": json_schema({"type": "string", "anyOf": [{"maxLength": 15_000}, {"pattern": "^a"}]}),
    "too long to count": json_schema({"type": "string", "maxLength": 10**15, "pattern": "^(ab|c)*$"}),
    "too many to count": json_schema({"type": "array", "maxItems": 10**15}),
    "numbers with many digits": json_schema({"type": "number", "minimum": 10**300, "maximum": 10**300 + 1}),
    "a bound of many digits": json_schema({"type": "number", "minimum": 10**4000}),
    "arrays 100k deep": json_schema(nested(100_000, array_of, True)),
    "anyOf 900 deep": json_schema(nested(900, either, True)),
    "a constant 100k deep": json_schema({"const": nested(100_000, lambda inner: [inner], 1)}),
    "a constant 600 deep": json_schema({"const": nested(600, lambda inner: [inner], 1)}),
    "an object 600 deep": json_schema({"const": nested(600, lambda inner: {"a": inner}, 1)}),
    "a chain of references": json_schema(definitions(3000, lambda i, ref: {"$ref": ref})),
    "alternatives that double": json_schema(
        definitions(60, lambda i, ref: {"anyOf": [{"$ref": ref}, {"$ref": ref}, {"items": {"$ref": ref}}]})
    ),
    "objects that overlap": json_schema({"anyOf": [members(NAMES[i : i + 14]) for i in range(14)]}),
    "arrays that count apart": json_schema(
        {"type": "array", "anyOf": [{"minItems": n, "maxItems": 2000 * n} for n in range(1, 6)]}
    ),
    "a reference to itself": json_schema({"$ref": "#"}),
    "references in a circle": json_schema(definitions(500, lambda i, ref: {"$ref": ref}, last={"$ref": "#/$defs/d0"})),
    "alternatives in a circle": json_schema(
        definitions(50, lambda i, ref: {"anyOf": [{"$ref": ref}, {"$ref": "#/$defs/d0"}]}, last={"$ref": "#"})
    ),
    "nothing satisfies it": json_schema(
        nested(80, lambda inner: members(["a"], required=["a", "b"], **{"not": inner}), False)
    ),
    "no end of a required property": json_schema(
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    ),
    "many evaluations": json_schema(
        {"anyOf": [{"properties": {name: True}} for name in NAMES[:40]], "unevaluatedProperties": False}
    ),
    "evaluations that double": json_schema(
        {
            **definitions(60, lambda i, ref: {"anyOf": [{"$ref": ref}, {"$ref": ref, "properties": {f"p{i}": True}}]}),
            "unevaluatedProperties": False,
        }
    ),
    "lists of lists of values": json_schema(
        {
            **definitions(8, lambda i, ref: {"anyOf": [{"$ref": ref}] * 60}, last={"enum": []}),
            "items": {"$ref": "#/$defs/d0"},
            "uniqueItems": True,
        }
    ),
    "oneOf 40 deep": json_schema(
        nested(40, lambda inner: {"oneOf": [inner, {"type": "string"}, {"minLength": 3}]}, {"type": "integer"})
    ),
    "oneOf of oneOf of objects": json_schema(
        nested(8, lambda inner: {"oneOf": [members(["a"]) | {"properties": {"a": inner}}, members(["b"])]}, True)
    ),
    "anyOf of anyOf of objects": json_schema(
        nested(6, lambda inner: {"anyOf": [{"properties": {n: inner}, "required": [n]} for n in NAMES[:4]]}, True)
    ),
    "oneOf of open objects": json_schema({"oneOf": [members(NAMES[i : i + 1]) for i in range(60)]}),
    "a chain of oneOf": json_schema(
        definitions(40, lambda i, ref: {"oneOf": [{"$ref": ref}, {"properties": {f"p{i}": {"type": "integer"}}}]})
    ),
    "anyOf of 2,000 objects": json_schema(
        {"anyOf": [{"properties": {f"a{i}": {"type": "integer"}, f"b{i}": True}} for i in range(2000)]}
    ),
    "oneOf of 12 open objects": json_schema(
        {"oneOf": [{"properties": {f"p{(i + j) % 12}": {"type": "integer"} for j in range(5)}} for i in range(12)]}
    ),
    "a regex of a megabyte": regex("a" * 1_000_000),
    "a regex of many classes": regex("[a-z]" * 190_000),
    "words that may stand outside of strings": {
        "type": "all_of",
        "specifications": [
            json_schema({"type": "object"}),
            {"type": "banned_words", "words": [f"{i}true" for i in range(2000)]},
        ],
    },
    "a product": {
        "type": "all_of",
        "specifications": [json_schema(True), regex("(?=.*\\d)(?=.*[a-z])(?=.*[A-Z]).{8,}")],
    },
    "oneOf of objects that overlap": json_schema({"oneOf": [members(NAMES[i : i + 10]) for i in range(10)]}),
    "one dynamic anchor in many resources": json_schema(resources(12, lambda i: "node")),
    "many dynamic anchors": json_schema(resources(7, lambda i: f"node{i}")),
    "NUL in a pattern": json_schema({"pattern": "a\0b"}),
    "NUL in a regex": regex("\0"),
    "NUL in a name pattern": json_schema({"patternProperties": {"\0": True}}),
    "a megabyte": json_schema({"description": "x", "enum": ["x" * (1 << 20)]}),
    "distinct objects of distinct objects": json_schema(
        definitions(40, lambda i, ref: distinct({"$ref": ref}, minItems=3) if i == 0 else pair_of({"$ref": ref}))
    ),
    "distinct trees": json_schema(
        definitions(40, lambda i, ref: distinct({"anyOf": [{"$ref": ref}, array_of({"$ref": ref})]}, minItems=2))
    ),
    "many distinct places": json_schema(
        {"prefixItems": [{"type": "string", "pattern": "^(ab|c)*$"}] * 3000, "minItems": 3000, "uniqueItems": True}
    ),
    "distinct texts that hardly grow in number": json_schema(
        distinct({"type": "string", "pattern": "^(a{50}|b{51})*c*$", "maxLength": 100_000}, minItems=90_000)
    ),
    "names that hardly grow in number": json_schema(
        {
            "minProperties": 50_000,
            "patternProperties": {f"^(a{{{i}}}b)*c*$": {"const": i} for i in range(1, 40)},
            "propertyNames": {"maxLength": 3000},
        }
    ),
}
"""What may be compiled or refused, but within the bound, and never by another exception."""


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_or_harmless(name: str) -> None:
    try:
        with at_most(MOST_CALLS):
            fsm = compile_grammar(BOMBS[name], bytes_vocabulary())
    except GrammarError:
        return
    assert fsm.allowed_tokens(fsm.initial_state)


@pytest.mark.parametrize("seed", range(12))
def test_random_hostile_specifications_are_refused_in_time(seed: int) -> None:
    specification, options = hostile_specification(random.Random(seed))
    try:
        with at_most(MOST_CALLS):
            compile_grammar(specification, bytes_vocabulary(), options=options)
    except GrammarError:
        pass


@pytest.mark.parametrize("calls", [10, 100_000])
def test_too_much_work_is_found(calls: int) -> None:
    with pytest.raises(TooMuchWorkError) as caught, at_most(calls):
        compile_grammar(BOMBS["a chain of oneOf"], bytes_vocabulary())
    assert caught.value.__notes__ == [f"more than {calls} calls"]


def test_calls_are_counted() -> None:
    def python(many: int) -> None:
        for _ in range(many):
            len("")
            (lambda: None)()

    # The call of `python`, of what it calls, and a few of the context manager.
    with at_most(2 * 500 + 10):
        python(500)
    with pytest.raises(TooMuchWorkError), at_most(2 * 500 - 1):
        python(500)


def test_it_makes_no_difference_what_was_compiled_before() -> None:
    """Steps are counted for what is remembered, too."""
    patterns = [f"^(ab|c{{1,{n}}}d)*e{{0,{n}}}$" for n in range(5, 15)]
    specification = json_schema({"type": "string", "not": {"anyOf": [{"pattern": pattern} for pattern in patterns]}})
    refused = []
    for steps in range(5_000, 200_000, 15_000):
        limits = Limits(max_steps=steps)
        for _ in range(2):
            try:
                compile_grammar(specification, bytes_vocabulary(), limits=limits)
                refused.append(False)
            except LimitExceededError:
                refused.append(True)
    assert refused[::2] == refused[1::2]
    assert {True, False} == set(refused)


def test_a_bomb_does_not_spoil_what_comes_after() -> None:
    """Caches are shared between specifications: a failure leaves nothing behind."""
    for _ in range(2):
        with pytest.raises(LimitExceededError):
            compile_grammar(json_schema({"pattern": r"a[\s\S]{40}$"}), bytes_vocabulary())
        assert accepts(compile_grammar(json_schema({"pattern": "^a$"}), bytes_vocabulary()), '"a"')


def test_tight_limits_of_one_caller_are_not_those_of_another() -> None:
    specification = json_schema({"type": "string", "pattern": "^a{40}$"})
    with pytest.raises(LimitExceededError):
        compile_grammar(specification, bytes_vocabulary(), limits=Limits(max_regex_states=10))
    assert accepts(compile_grammar(specification, bytes_vocabulary()), '"' + "a" * 40 + '"')


# -- steps stand for time -------------------------------------------------------------------------------------------


def repeated(levels: int, inner: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    """A tag of nested formats."""
    return {"type": "structural_tag", "format": nested(levels, lambda one: {**keywords, "content": one}, inner)}


SMALL_NUMBERS = [float(f"{number + 1}e{number - 300}") for number in range(600)]


@pytest.mark.parametrize(
    ("calls", "specification"),
    [
        (1_200_000, regex("(" + "(?:(?=ab.*cd)|[a-z])" * 300 + ")*")),
        (2_100_000, regex("(?:(?:(?=ab.*cd)|[a-z])*)" * 300)),
        (1_500_000, regex("(?:(?=(?:a.*b){9})|[a-z])*" * 50)),
        (8_000_000, regex(".*" + "".join(f"(?<!ab{chr(97 + i % 26)}.{chr(97 + i // 26)}d)." for i in range(200)))),
        (200_000, json_schema({"type": "number", "not": {"enum": SMALL_NUMBERS}})),
        (32_000_000, repeated(5, {"type": "regex", "pattern": "[a-z]+b"}, type="repeat", min=0, max=50)),
        (32_000_000, repeated(5, {"type": "const_string", "value": "ab"}, type="repeat", min=0, max=50)),
        (
            32_000_000,
            repeated(5, {"type": "grammar", "grammar": 'start: "a" start "b" | "c"'}, type="repeat", min=0, max=50),
        ),
        (40_000_000, json_schema(members(NAMES[:600], minProperties=300))),
        (40_000_000, json_schema(members(NAMES[:600], minProperties=300, additionalProperties=False))),
    ],
)
def test_what_no_step_counted_is_counted(calls: int, specification: dict[str, Any]) -> None:
    """Each took five seconds of CPU or more at fewer than `max_steps`. `calls`: three times as many as it takes now."""
    with contextlib.suppress(LimitExceededError), running(Budget(Limits())), at_most(calls):
        compile_grammar(specification, bytes_vocabulary())


def test_a_leaf_that_is_repeated_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    spellable = leaves.spellable_text
    monkeypatch.setattr(leaves, "spellable_text", lambda *arguments: compiled.append(1) or spellable(*arguments))
    compile_grammar(repeated(3, {"type": "regex", "pattern": "a+b"}, type="repeat", min=0, max=5), bytes_vocabulary())
    assert len(compiled) == 1


def test_one_token_may_take_a_small_part_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    optional = "\n".join(f"r{i} ::= {' '.join(f'r{(7 * i + j) % 20}?' for j in range(5))} 'ab'?" for i in range(20))
    text = "root ::= r0\n" + optional.replace("'", '"')
    fsm = compile_grammar({"type": "grammar", "syntax": "gbnf", "text": text}, bytes_vocabulary())
    assert fsm.next_state(fsm.initial_state, ord("a")) > 0
    again = compile_grammar({"type": "grammar", "syntax": "gbnf", "text": text}, bytes_vocabulary())
    monkeypatch.setattr("grammar_workers.matching.cfg_recognizer._TOKENS_AT_MOST", Limits().max_steps)
    with pytest.raises(LimitExceededError, match="one token of an ambiguous grammar takes more than 1 steps"):
        again.allowed_tokens(again.next_state(again.initial_state, ord("a")))
