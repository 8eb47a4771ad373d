"""Rows that are shared or walked on a shorter way are those that a walk of the whole vocabulary finds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.matching.kernels import mask
from grammar_workers.matching.long_rows import WalkedTrees
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.types import MaskRow
from tests.grammar_workers.vocabularies import bytes_vocabulary, random_walk, states_along

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 60},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 2, "maxItems": 4},
        "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
        "size": {"type": "number", "minimum": 0, "maximum": 500},
    },
    "required": ["tags"],
}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "nested": NESTED,
    "counted names": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "array", "maxItems": 2}},
    "words": {"type": "string", "pattern": r"^(?:\S+\s+){0,9}\S+$", "maxLength": 80},
    "label": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "pattern names": {"type": "object", "patternProperties": {r"^[\w.-]+$": NESTED}, "additionalProperties": False},
    "after a word": {"type": "string", "pattern": "^(schema |\\\\é).+$", "maxLength": 50},
    "no letters": {"type": "string", "pattern": '^[^a-z"-/\u0085-\u009f]{5,2000}x$'},
}


def walked(recognizer: PushdownRecognizer, vocabulary: Vocabulary, configuration: tuple[int, ...]) -> MaskRow:
    """The row as reading every token byte by byte finds it."""
    _, places = recognizer.targets(configuration, np.zeros(0, np.uint32))
    bits = np.zeros(vocabulary.mask_words * 32, np.uint8)
    bits[: vocabulary.size] = places >= 0
    return np.packbits(bits, bitorder="little").view(np.uint32)


def check(fsm: TokenFSM, rng: random.Random, walks: int) -> None:
    recognizer = fsm._recognizer
    assert isinstance(recognizer, PushdownRecognizer)
    states = {state for _ in range(walks) for state in states_along(fsm, random_walk(fsm, rng, longest=40))}
    for state in sorted(states - {fsm.end_state}):
        row = walked(recognizer, fsm.vocabulary, fsm._configurations[state])
        if fsm.is_terminal(state):
            row |= fsm.vocabulary.eos_mask
        assert np.array_equal(fsm.allowed_mask(state), row)


@pytest.mark.parametrize("order", ["declared", "any"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_shared_rows_are_those_that_a_walk_finds(name: str, order: str) -> None:
    specification = {"type": "json_schema", "schema": SCHEMAS[name]}
    fsm = compile_grammar(specification, bytes_vocabulary(), options=GrammarOptions(property_order=order))
    fsm.prefetch_masks(300)
    check(fsm, random.Random(name), walks=12)


@pytest.mark.parametrize("name", SCHEMAS)
def test_shared_rows_in_a_large_vocabulary(name: str) -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": SCHEMAS[name]}, tekken_vocabulary())
    check(fsm, random.Random(name), walks=2)


PIECES = ["[a-z]", r"\w", r"\S", r"\s", "[^b-y]", '["a-m]', r"[\\n-z]", "é", "[a-zß-ÿ€-₯]", "ab", "."]


def below_other_frames(rng: random.Random) -> dict[str, Any]:
    """Strings and names of random patterns, at any depth: what may follow their quote differs."""

    def pattern() -> str:
        parts = (rng.choice(PIECES) + rng.choice(["", "+", "*", "{2,5}"]) for _ in range(rng.randint(1, 4)))
        return f"^(?:{''.join(parts)}){rng.choice(['', '+'])}$"

    text = {"type": "string", "pattern": pattern()} | rng.choice([{}, {"maxLength": 9}, {"maxLength": 60}])
    names = {pattern(): {"$ref": "#/$defs/tree"}, "^-": {"type": "array", "items": text, "maxItems": 3}}
    tree = {
        "anyOf": [
            text,
            {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": rng.randint(1, 3)},
            {"type": "object", "patternProperties": names, "additionalProperties": False, "maxProperties": 2},
        ]
    }
    return {"$defs": {"tree": tree}, "type": "array", "items": {"$ref": "#/$defs/tree"}, "minItems": 2}


@pytest.mark.parametrize(
    ("vocabulary", "schemas", "walks"), [(bytes_vocabulary(), 12, 30), (tekken_vocabulary(), 3, 6)]
)
def test_long_rows_of_a_state_below_other_frames(
    vocabulary: Vocabulary, schemas: int, walks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(schemas)
    walked_trees: set[int] = set()
    choose = WalkedTrees.choose

    def noted(trees: WalkedTrees, state: int) -> int:
        tree = choose(trees, state)
        walked_trees.add(tree)
        return tree

    monkeypatch.setattr(WalkedTrees, "choose", noted)
    for _ in range(schemas):
        fsm = compile_grammar({"type": "json_schema", "schema": below_other_frames(rng)}, vocabulary)
        check(fsm, rng, walks)
    assert mask.FOLDED_TREE in walked_trees


@pytest.mark.parametrize(
    "schema", [True, NESTED, {"maxLength": 40, "minLength": 3}, {"enum": ["\x01a", "\n"]}], ids=str
)
def test_rows_within_an_escape(schema: Any) -> None:
    """Half an escape sequence leads into the string again, after which most of the vocabulary may follow."""
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, tekken_vocabulary())
    recognizer = fsm._recognizer
    assert isinstance(recognizer, PushdownRecognizer)
    for text in (
        b'"\\',
        b'"\\u',
        b'"\\u0',
        b'"\\u00',
        b'"\\u001',
        b'"ab\\',
        b'{"\\',
        b'{"na\\',
        b'[{"a": "\\',
        b'{"tags": ["\\',
    ):
        state = fsm.initial_state
        for byte in text:
            state = fsm.next_state(state, fsm.vocabulary.encode(bytes([byte]))[0])  # type: ignore[index]
        if state >= 0:
            row = walked(recognizer, fsm.vocabulary, fsm._configurations[state])
            assert np.array_equal(fsm.allowed_mask(state), row)


def test_depth_and_length_share_rows() -> None:
    """Rows ahead end although nesting has no end: what no token can see makes no difference."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "text": {"type": "string", "maxLength": 10_000}}}
    fsm = compile_grammar({"type": "json_schema", "schema": tree}, bytes_vocabulary())
    rows = fsm.prefetch_masks(10_000)
    assert fsm.prefetch_masks(10_000) == rows < 200
    text = b'{"next": ' * 40 + b'{"text": "' + b"a" * 5_000
    tokens = fsm.vocabulary.encode(text)
    assert tokens is not None
    for state in states_along(fsm, tokens):
        assert fsm.allowed_mask(state).any()
    assert fsm.prefetch_masks(0) == rows


def test_rows_ahead_go_on_where_callers_do() -> None:
    """Both objects have the same rows, but not what follows them."""
    item = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    schema = {"type": "array", "prefixItems": [item, item, {"const": "last"}], "minItems": 3, "items": False}
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    rows = fsm.prefetch_masks()
    begin, end = b'[{"key": "a"}, {"key": "b"}', b', "last"]'
    tokens = fsm.vocabulary.encode(begin + end)
    assert tokens is not None
    fsm._recognizer.find_or_fill_mask = None  # type: ignore[method-assign, assignment]
    assert all(fsm.allowed_mask(state).any() for state in states_along(fsm, tokens)[len(begin) :])
    assert fsm.prefetch_masks(0) == rows


def test_rows_ahead_are_kept_where_no_two_places_share_one() -> None:
    specification = {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "[" (root | [a-z]+ ":" [0-9]+) "]"'}
    fsm = compile_grammar(specification, bytes_vocabulary())
    rows = fsm.prefetch_masks(200)
    fsm._recognizer.find_or_fill_mask = None  # type: ignore[method-assign, assignment]
    assert fsm.prefetch_masks(200) == rows
    tokens = fsm.vocabulary.encode(b"[[[abc:123]]]")
    assert tokens is not None
    assert all(fsm.allowed_mask(state).any() for state in states_along(fsm, tokens))


def test_automata_of_one_vocabulary_share_rows() -> None:
    vocabulary = bytes_vocabulary()
    tens, ten = (
        compile_grammar({"type": "json_schema", "schema": {"enum": values}}, vocabulary) for values in ([10, 20], [10])
    )
    one, other = (fsm.allowed_mask(states_along(fsm, list(b"10"))[-1]) for fsm in (tens, ten))
    assert one is other
