"""No collections while anything is compiled, collections as before afterwards, and nothing for them to do."""

from __future__ import annotations

import gc
from typing import Any, Literal

import pytest

from grammar_workers import GrammarOptions, compile_grammar
from grammar_workers.collector import CollectorPause
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


def test_collections_go_on_after_the_last_compilation() -> None:
    pause = CollectorPause()
    assert gc.isenabled()
    with pause:
        assert not gc.isenabled()
        with pause, pytest.raises(ValueError, match="broken"):
            raise ValueError("broken")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_off_before_stays_off() -> None:
    pause = CollectorPause()
    gc.disable()
    try:
        with pause:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


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
