"""Rows made ahead are those that an automaton without them finds on its way."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grammar_workers import GrammarOptions, Limits, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.kernels import mask_classes
from tests.grammar_workers.specifications import CORNER_CASES, TOOL_CALL
from tests.grammar_workers.test_row_classes import SCHEMAS
from tests.grammar_workers.test_tag_formats import CALL, tag
from tests.grammar_workers.test_tag_formats import VOCABULARY as TAG_VOCABULARY
from tests.grammar_workers.test_tag_formats import specification as tag_specification
from tests.grammar_workers.vocabularies import (
    LARGE,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    states_along,
)

SPECIFICATIONS: dict[str, Any] = {
    **CORNER_CASES,
    **{name: {"type": "json_schema", "schema": schema} for name, schema in SCHEMAS.items()},
    "tool call": TOOL_CALL,
    "names and lengths": {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {name: {"type": "array", "items": {"type": "integer"}, "maxItems": 3} for name in "abcd"},
            "required": ["b"],
            "maxProperties": 3,
        },
    },
    "deep ends": {
        "type": "json_schema",
        "schema": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]},
    },
}


def check(ahead: TokenFSM, alone: TokenFSM, rng: random.Random, walks: int) -> None:
    """Both see the same rows on random walks through one and the other."""
    for number in range(walks):
        tokens = random_walk((ahead, alone)[number % 2], rng, longest=40)
        for here, there in zip(states_along(ahead, tokens), states_along(alone, tokens), strict=True):
            assert ahead.is_terminal(here) == alone.is_terminal(there)
            assert np.array_equal(ahead.allowed_mask(here), alone.allowed_mask(there))
            assert ahead.count_allowed(here) == alone.count_allowed(there)


CASES = [
    *((name, bytes_vocabulary) for name in SPECIFICATIONS),
    *((name, characters_vocabulary) for name in CORNER_CASES),
    *((name, make) for name in ("union of objects", "nested", "after a word") for make in LARGE),
]


@pytest.mark.parametrize(("name", "make"), CASES)
def test_rows_ahead_are_those_found_on_the_way(name: str, make: Callable[[], Vocabulary]) -> None:
    ahead, alone = (compile_grammar(SPECIFICATIONS[name], make()) for _ in range(2))
    rows = ahead.prefetch_masks(300)
    assert rows > 1
    assert ahead.prefetch_masks(300) == rows
    check(ahead, alone, random.Random(name), walks=20)


def test_rows_ahead_stop_in_time_and_go_on_later() -> None:
    ahead, alone = (compile_grammar(SPECIFICATIONS["nested"], bytes_vocabulary()) for _ in range(2))
    few = ahead.prefetch_masks(max_seconds=0.0)
    assert few < ahead.prefetch_masks() == alone.prefetch_masks()


@pytest.mark.parametrize("name", ["declared and free names", "nested", "pattern names", "names and lengths"])
def test_rows_ahead_in_any_order(name: str) -> None:
    options = GrammarOptions(property_order="any")
    ahead, alone = (compile_grammar(SPECIFICATIONS[name], bytes_vocabulary(), options=options) for _ in range(2))
    rows = ahead.prefetch_masks()
    assert ahead.prefetch_masks() == rows
    check(ahead, alone, random.Random(name), walks=20)


def test_rows_ahead_behind_special_tokens() -> None:
    """Python makes these rows, and each once: a state for each class."""
    call = tag("<|call|>f", {"type": "json_schema", "json_schema": SCHEMAS["nested"]}, "<|/call|>")
    calls = {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [call]}
    ahead, alone = (compile_grammar(tag_specification(calls), TAG_VOCABULARY) for _ in range(2))
    rows = ahead.prefetch_masks(300)
    assert ahead.prefetch_masks(300) == rows
    assert ahead.known_mask(ahead.next_state(ahead.initial_state, CALL)) is not None
    assert ahead.state_count <= ahead._recognizer._mask_classes.tables.used[0] + 3  # type: ignore[attr-defined]
    check(ahead, alone, random.Random(6), walks=20)


def test_rows_ahead_of_what_has_been_walked_already() -> None:
    """Rows and classes found before are left as they are."""
    walked, alone = (compile_grammar(SPECIFICATIONS["nested"], bytes_vocabulary()) for _ in range(2))
    rng = random.Random(5)
    tokens = random_walk(walked, rng)
    kept = [walked.allowed_mask(state) for state in states_along(walked, tokens)]
    fresh = compile_grammar(SPECIFICATIONS["nested"], bytes_vocabulary())
    assert walked.prefetch_masks() >= fresh.prefetch_masks()
    assert all(walked.allowed_mask(state) is row for state, row in zip(states_along(walked, tokens), kept, strict=True))
    check(walked, alone, rng, walks=10)


def test_few_places_at_a_time_come_to_the_same() -> None:
    """A budget that ends within a batch, before or after rows that Python makes, leaves nothing half done."""
    ahead, alone = (compile_grammar(SPECIFICATIONS["words"], bytes_vocabulary()) for _ in range(2))
    rows = [ahead.prefetch_masks(places) for places in range(0, 120, 3)]
    assert rows == sorted(rows)
    check(ahead, alone, random.Random(1), walks=10)


@pytest.mark.parametrize("name", ["nested", "names and lengths"])
def test_new_states_are_looked_at_before_others(name: str) -> None:
    fsm = compile_grammar(SPECIFICATIONS[name], bytes_vocabulary())
    fsm.prefetch_masks(40)
    classes, _, used = fsm._recognizer._mask_classes.tables  # type: ignore[attr-defined]
    states = classes[: used[0], mask_classes.CLASS_STATE].tolist()
    assert len(states) == len(set(states)) == 40


@pytest.mark.parametrize("name", ["tree", "tool call", "grammar of values"])
def test_walking_while_rows_are_made(name: str) -> None:
    ahead, alone = (compile_grammar(SPECIFICATIONS[name], bytes_vocabulary()) for _ in range(2))
    thread = threading.Thread(target=ahead.prefetch_masks)
    thread.start()
    check(ahead, alone, random.Random(name), walks=30)
    thread.join()
    check(ahead, alone, random.Random(name), walks=30)


def test_rows_ahead_stop_at_the_memory_limit() -> None:
    """What is known by then goes on working."""
    limits = Limits(max_fsm_bytes=300_000)
    ahead, alone = (compile_grammar(SPECIFICATIONS["nested"], bytes_vocabulary(), limits=limits) for _ in range(2))
    ahead._rows._words *= 1000
    with pytest.raises(LimitExceededError, match="max_fsm_bytes"):
        ahead.prefetch_masks()
    ahead._rows._words //= 1000
    check(ahead, alone, random.Random(2), walks=10)


def test_rows_are_kept_when_the_walk_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that have been noted count as known, so that nobody would make their rows again."""
    monkeypatch.setattr(mask_classes, "_FIRST_CLASSES", 16)
    ahead, alone = (compile_grammar(SPECIFICATIONS["tree"], bytes_vocabulary()) for _ in range(2))

    def refuse() -> None:
        raise LimitExceededError("no more classes")

    monkeypatch.setattr(ahead._recognizer, "_grow_classes", refuse)
    with pytest.raises(LimitExceededError, match="no more classes"):
        ahead.prefetch_masks()
    monkeypatch.undo()
    check(ahead, alone, random.Random(3), walks=20)
    ahead.prefetch_masks()
    check(ahead, alone, random.Random(4), walks=20)
