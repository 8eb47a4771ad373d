"""What compilations go on from is left as it was, and changes no language: the automaton built anew is the oracle."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from grammar_workers import GrammarOptions, Limits, TokenFSM, compile_grammar
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema import stages
from grammar_workers.pushdown.builder import PushdownBuilder
from tests.grammar_workers.vocabularies import bytes_vocabulary

SCHEMAS: list[Any] = [
    {},
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"type": "array", "items": {"type": "array"}},
    {"properties": {"a": {"type": "string"}, "é\n": {"type": "number"}}, "required": ["a"]},
    {"properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 3}}, "additionalProperties": False},
    {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {}}, "required": ["b"]}]},
    {"patternProperties": {"^x": {"type": "null"}}, "maxProperties": 2},
    {"not": {"type": "object"}, "contains": {"type": "string"}},
]
OPTIONS = [
    GrammarOptions(),
    GrammarOptions(whitespace="flexible", whitespace_limit=2),
    GrammarOptions(property_order="any", number_spelling="any"),
    GrammarOptions(escapes="any"),
]


def _compiled(schema: Any, options: GrammarOptions, limits: Limits = Limits()) -> TokenFSM:  # noqa: B008 - immutable
    return compile_grammar(
        {"type": "json_schema", "schema": schema}, bytes_vocabulary(), options=options, limits=limits
    )


def _alone(monkeypatch: pytest.MonkeyPatch, schema: Any, options: GrammarOptions) -> TokenFSM:
    """Compiled with everything solved and laid out anew."""
    with monkeypatch.context() as context:
        context.setattr(PushdownBuilder, "go_on_from", lambda self, begun: False)
        return _compiled(schema, options)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.key_text()[:60])
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_the_language_is_that_of_an_automaton_built_anew(
    monkeypatch: pytest.MonkeyPatch, schema: Any, options: GrammarOptions
) -> None:
    fsm, other = _compiled(schema, options), _alone(monkeypatch, schema, options)
    assert fsm.notes == other.notes
    for seed in range(20):
        rng = random.Random(seed)
        state, reached = fsm.initial_state, other.initial_state
        for _ in range(60):
            row = fsm.allowed_mask(state)
            assert np.array_equal(row, other.allowed_mask(reached))
            assert fsm.is_terminal(state) == other.is_terminal(reached)
            allowed = sorted(fsm.allowed_tokens(state))
            if not allowed:
                break
            # Quotes, brackets and separators are most of what an automaton is about.
            token = rng.choice([token for token in allowed if token < 256 and chr(token) in '{}[]",:ab1'] or allowed)
            state, reached = fsm.next_state(state, token), other.next_state(reached, token)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.key_text()[:60])
def test_an_artifact_does_not_depend_on_what_was_compiled_before(options: GrammarOptions) -> None:
    stages._common_values.cache_clear()
    forwards = [_compiled(schema, options).to_bytes() for schema in SCHEMAS]
    backwards = [_compiled(schema, options).to_bytes() for schema in reversed(SCHEMAS)]
    assert forwards == backwards[::-1]


def test_a_second_schema_in_one_automaton_has_common_values_too() -> None:
    tags = [
        {"begin": f"<{name}>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</>"}
        for name, schema in (("a", {"type": "string"}), ("b", {"properties": {"c": {}}, "required": ["c"]}))
    ]
    specification = {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": ["<"], "tags": [{"type": "tag", **tag} for tag in tags]},
    }
    fsm = compile_grammar(specification, bytes_vocabulary())
    for text in (b'<a>"x"</>', b'<b>{"c": [1, {"d": null}]}</>'):
        state = fsm.initial_state
        for byte in text:
            state = fsm.next_state(state, byte)
        assert fsm.is_terminal(state), text


def test_common_values_are_not_counted_as_states() -> None:
    limits = Limits(max_states=20)
    assert _compiled({"type": "object"}, GrammarOptions(), limits).allowed_tokens(TokenFSM.initial_state)
    with pytest.raises(LimitExceededError, match="max_states"):
        _compiled({"enum": ["a" * 30]}, GrammarOptions(), limits)
