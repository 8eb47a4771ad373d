"""Every limit that a specification exceeds is refused with its place: pointer, line and column, part of a pattern."""

from __future__ import annotations

from typing import Any

import pytest

from grammar_workers import Limits, compile_grammar
from grammar_workers.errors import LimitExceededError
from tests.grammar_workers.vocabularies import bytes_vocabulary

PATTERN = "/properties/p/pattern"
WORDS = [f"word{number}" for number in range(300)]
STEP = {"from": 0, "to": 1}
LARGE = "x(a|b)*a(a|b){12}"
"""A pattern whose last part, at position 8, needs 4,096 states."""
STATES = {"max_regex_states": 600}


def grammar(syntax: str, text: str) -> dict[str, Any]:
    return {"type": "grammar", "syntax": syntax, "text": text}


def schema(**keywords: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": {"properties": {"p": keywords}}}


def tag(element: dict[str, Any]) -> dict[str, Any]:
    elements = [{"type": "const_string", "value": "a"}, element]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}


def all_of(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "all_of", "specifications": list(parts)}


def regex(pattern: str) -> dict[str, Any]:
    return {"type": "regex", "pattern": pattern}


def token_steps(many: int) -> list[dict[str, Any]]:
    return [{"from": number, "to": number + 1, "tokens": [1]} for number in range(many)]


def gbnf(item: str, root: str = '"x"\n  item') -> dict[str, Any]:
    return grammar("gbnf", f"root ::= {root}\nitem ::= {item}")


def lark(item: str) -> dict[str, Any]:
    return grammar("lark", f'start: "x" item\nitem: {item}')


GAPS = {"pattern": "^(?:a{1999}|a{1990}(?:a{500})*)$", "minLength": 58000, "maxLength": 58100}
"""Lengths that only a table would tell apart."""
CASES = [
    (schema(format="email", pattern="^.{1,64}@.{1,255}$"), {"max_regex_states": 10_000}, PATTERN, None),
    (schema(type="string", **GAPS), {}, PATTERN, None),
    (regex(LARGE), STATES, None, 8),
    (regex(LARGE), {"max_steps": 3000}, None, 8),
    (regex(f"a*(?=b{LARGE}$)[abx]*"), STATES, None, 14),
    (regex("ab(cd){40}"), {"max_states": 50}, None, 2),
    (regex("ab(cd){40}"), {"max_regex_states": 20}, None, 2),
    (regex("a" + "(" * 6 + ")" * 6), {"max_nesting": 5}, None, 6),
    (regex("abc" * 10), {"max_states": 20}, None, 0),
    ({"type": "choice", "choices": WORDS}, {"max_states": 100}, "/choices", None),
    ({"type": "choice", "choices": WORDS}, {"max_steps": 100}, "/choices", None),
    (
        {"type": "pattern", "elements": [["UPPER", "+"], ["LOWER", "{1,300}"]]},
        {"max_regex_states": 100},
        "/elements/1",
        None,
    ),
    ({"type": "positions", "allowed": [["a", "b"]] * 200}, {"max_regex_states": 100}, "/allowed", None),
    ({"type": "positions", "allowed": [[1, 2]] * 200}, {"max_states": 100}, "/allowed", None),
    (
        {"type": "automaton", "initial": 0, "accepting": [150], "transitions": token_steps(150)},
        {"max_states": 100},
        "/transitions",
        None,
    ),
    (
        {"type": "automaton", "initial": 0, "accepting": [1], "transitions": [{**STEP, "pattern": "x[ab]{300}"}]},
        {"max_regex_states": 100},
        "/transitions/0/pattern",
        1,
    ),
    ({"type": "substring", "text": "ab" * 70_000}, {}, "/text", None),
    (all_of(regex(".*"), {"type": "substring", "text": "ab" * 30_000}), {}, "/specifications/1/text", None),
    ({"type": "banned_words", "words": WORDS}, {"max_steps": 100}, "/words", None),
    (all_of(regex("a*"), regex(LARGE)), STATES, "/specifications/1", 8),
    (all_of({"type": "json_object"}, regex(".*a.{9}")), {"max_steps": 10_000}, "/specifications/1", 3),
    (gbnf('[ab]* "a" [ab]{12}'), STATES, None, 20),
    (gbnf('[ab]* "a" [ab]{12}'), {"max_steps": 3000}, None, 20),
    (gbnf('([ab]{500} "c"){500}'), {}, None, 20),
    (gbnf("[ab]{999999999}"), {}, None, 33),
    (gbnf('[ab]* "a" [ab]{12}', '"(" root ")" |\n  item'), {"max_steps": 3000}, None, 31),
    (gbnf("[ab]{90}"), {"max_states": 50}, "/text", None),
    (all_of(regex(".*a.{6}"), gbnf("[ab]* item? [ab]{5}")), {"max_steps": 9000}, "/specifications/1", 0),
    (lark("/[ab]*a[ab]{12}/"), STATES, None, 23),
    (lark('("a"|"b")* "a" ("a"|"b")~12'), STATES, None, 16),
    (lark("A B\nA: /a(?=[ab]*a[ab]{12})/\nB: /[ab]+/"), STATES, None, 30),
    (lark('a{"y"}\na{x}: a{b{x}}\nb{y}: y y'), {}, None, 35),
    (tag(regex(LARGE)), STATES, "/format/elements/1", 8),
    (tag({"type": "grammar", "grammar": gbnf('[ab]* "a" [ab]{12}')["text"]}), STATES, "/format/elements/1", 20),
    (
        tag({"type": "json_schema", "json_schema": {"properties": {"p": {"pattern": LARGE}}}}),
        STATES,
        "/format/elements/1/json_schema/properties/p/pattern",
        8,
    ),
    (
        tag({"type": "repeat", "min": 1, "max": 5000, "content": {"type": "const_string", "value": "abc"}}),
        {"max_states": 1000},
        "/format/elements/1/content",
        None,
    ),
    (
        {
            "type": "structural_tag",
            "triggers": ["<w"],
            "tags": [{"begin": "<w>", "content": regex(LARGE), "end": "</w>"}],
        },
        STATES,
        "/tags/0/content",
        8,
    ),
    (schema(pattern=LARGE), STATES, "/properties/p/pattern", 8),
    (schema(patternProperties={LARGE: True}), STATES, f"/properties/p/patternProperties/{LARGE}", 8),
    (schema(enum=[word + 9 * "x" for word in WORDS]), {"max_steps": 4000}, "/properties/p", None),
]


@pytest.mark.parametrize(("specification", "limits", "pointer", "position"), CASES)
def test_a_limit_names_its_place(
    specification: dict[str, Any], limits: dict[str, int], pointer: str | None, position: int | None
) -> None:
    with pytest.raises(LimitExceededError) as caught:
        compile_grammar(specification, bytes_vocabulary(), limits=Limits(**limits))
    assert (caught.value.pointer or None, caught.value.position) == (pointer, position)
    is_grammar = specification["type"] == "grammar" and position is not None
    assert ("(line" in caught.value.message and "column" in caught.value.message) == is_grammar or pointer


def test_a_limit_in_a_schema_says_what_to_change() -> None:
    """Where the message of a limit says nothing itself, the keyword at its place does."""
    alternatives = [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(40)]
    specification = {"type": "json_schema", "schema": {"oneOf": alternatives}}
    with pytest.raises(LimitExceededError, match=r"max_steps\); use `anyOf` where alternatives exclude"):
        compile_grammar(specification, bytes_vocabulary(), limits=Limits(max_steps=20_000))
