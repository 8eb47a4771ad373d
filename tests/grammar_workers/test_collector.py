"""No collections while anything is compiled, collections as before afterwards, and nothing for them to do."""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from grammar_workers import GrammarOptions, Limits, compile_grammar, gc_control
from grammar_workers.errors import LimitExceededError
from grammar_workers.gc_control import GcPause
from tests.grammar_workers.specifications import CORNER_CASES, RECURSIVE_GRAMMARS
from tests.grammar_workers.vocabularies import bytes_vocabulary

SPECIFICATIONS = {**CORNER_CASES, **RECURSIVE_GRAMMARS}
OBJECTS = {
    "type": "json_schema",
    "schema": {
        "definitions": {"tree": {"properties": {"a": {"$ref": "#/definitions/tree"}, "b": {"minimum": 2}}}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"], "properties": {"c": {"pattern": "^a"}}}],
        "anyOf": [{"$ref": "#/definitions/tree"}, {"patternProperties": {"^x": {"enum": [1, "é"]}}}],
        "unevaluatedProperties": False,
    },
}
"""References, alternatives, patterns of names, and what other keywords evaluate."""


@pytest.fixture(scope="module")
def few_objects() -> None:
    """Collections leave out what other tests have made and keep: looking through it takes a second each time."""
    gc.collect()
    gc.freeze()


def test_collections_go_on_after_the_last_compilation() -> None:
    pause = GcPause()
    assert gc.isenabled()
    with pause:
        assert not gc.isenabled()
        with pause, pytest.raises(ValueError, match="broken"):
            raise ValueError("broken")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_off_before_stays_off() -> None:
    pause = GcPause()
    gc.disable()
    try:
        with pause:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("order", ["declared", "any"])
@pytest.mark.parametrize("specification", [*SPECIFICATIONS.values(), OBJECTS], ids=[*SPECIFICATIONS, "objects"])
def test_reference_counts_free_what_a_compilation_made(
    specification: dict[str, Any], order: Literal["declared", "any"]
) -> None:
    vocabulary, options = bytes_vocabulary(), GrammarOptions(property_order=order)
    # What is kept for later compilations is made now.
    compile_grammar(specification, vocabulary, options=options)
    gc.collect()
    gc.disable()
    try:
        compile_grammar(specification, vocabulary, options=options)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.usefixtures("few_objects")
def test_reference_counts_free_what_a_failed_compilation_made() -> None:
    vocabulary, limits = bytes_vocabulary(), Limits(max_steps=2000)

    def fail() -> str:
        try:
            compile_grammar(OBJECTS, vocabulary, limits=limits)
        except LimitExceededError as error:
            return error.message
        return ""

    assert "; " in fail(), "a limit with advice"
    gc.collect()
    gc.disable()
    try:
        fail()
        assert gc.collect() == 0
    finally:
        gc.enable()


class Ring:
    """Garbage that only a collection finds, once nobody else holds it."""

    def __init__(self) -> None:
        self.itself = self


def test_a_process_that_serves_collects_old_garbage_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold()
    try:
        gc_control.collect_seldom()
        # The thread may have been there before, and be due now.
        monkeypatch.setattr(gc_control, "gc", SimpleNamespace(collect=lambda: 0))
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[:2] == before[:2]
        full = gc.get_stats()[2]["collections"]
        kept: list[list[int]] = [[] for _ in range(200_000)]
        assert gc.get_stats()[2]["collections"] == full
        ring = Ring()
        seen = weakref.ref(ring)
        gc.collect(1)  # what is alive is old now
        del kept, ring
        gc.collect(1)
        assert seen() is not None
        monkeypatch.undo()
        gc_control._start_collecting.cache_clear()
        monkeypatch.setattr(gc_control, "FULL_COLLECTION_S", 0.01)
        gc_control.collect_seldom()
        ring = Ring()
        seen = weakref.ref(ring)
        gc.collect(1)
        del ring
        deadline = time.monotonic() + 200
        while seen() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen() is None
    finally:
        monkeypatch.undo()
        gc.set_threshold(*before)
