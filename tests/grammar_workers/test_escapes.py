"""Option `escapes: any`: more spellings of the same strings, and of no others."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import is_valid
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    text_of,
)

ANY_ESCAPE = GrammarOptions(escapes="any")


def compiled(schema: Any, options: GrammarOptions, vocabulary: Vocabulary | None = None) -> TokenFSM:
    return compile_grammar({"type": "json_schema", "schema": schema}, vocabulary or bytes_vocabulary(), options=options)


STRINGS = [
    {},
    {"pattern": "^[a-dé😀]*$"},
    {"maxLength": 3},
    {"pattern": "a|é", "maxLength": 3},
    {"not": {"const": "a"}},
]


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """A string with each character raw or in one of its escapes."""
    result = ""
    for character in draw(
        st.text(st.sampled_from('abdé😀"\\/\n\x01\x7f\u2028\ud7ff\ue000\U00010000\U0010ffff'), max_size=4)
    ):
        units = character.encode("utf-16-be").hex()
        escaped = "".join(rf"\u{units[i : i + 4]}" for i in range(0, len(units), 4))
        upper = escaped.upper().replace(r"\U", r"\u")
        options = [json.dumps(character, ensure_ascii=False)[1:-1], escaped, upper]
        result += draw(st.sampled_from([*options, r"\/"] if character == "/" else options))
    return f'"{result}"'


@settings(PROPERTY, max_examples=150)
@given(schema=st.sampled_from(STRINGS), text=spelled())
def test_a_string_may_be_escaped_in_any_way(schema: dict[str, Any], text: str) -> None:
    schema = {"type": "string", **schema}
    # To Python, which judges, `$` also matches before a line feed at the end.
    assume(not (json.loads(text).endswith("\n") and schema.get("pattern", "").endswith("$")))
    assert accepts(compiled(schema, ANY_ESCAPE), text) == is_valid(schema, text)


@pytest.mark.parametrize("make", [bytes_vocabulary, characters_vocabulary])
@pytest.mark.parametrize("schema", STRINGS)
def test_escaped_strings_that_are_generated_are_valid(schema: dict[str, Any], make: Any) -> None:
    schema = {"type": "string", **schema}
    fsm = compiled(schema, ANY_ESCAPE, make())
    rng = random.Random(3)
    for _ in range(30):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=rng.randrange(20))).decode()
        assert is_valid(schema, text), text


@pytest.mark.parametrize(
    "body", [r"\ud83d", r"\ude00", r"\ud83da", r"\ud83d\u0061", r"\ude00\ud83d", r"\u00g0", r"\x61"]
)
def test_what_is_no_character_is_no_escape(body: str) -> None:
    assert not accepts(compiled({"type": "string"}, ANY_ESCAPE), f'"{body}"')


def test_names_and_listed_strings_keep_their_one_spelling() -> None:
    fsm = compiled({"properties": {"a": {"enum": ["b"]}}, "additionalProperties": True}, ANY_ESCAPE)
    assert accepts(fsm, '{"a": "b"}')
    assert not accepts(fsm, r'{"a": "\u0062"}')
    assert not accepts(fsm, r'{"\u0061": 1}')


def test_a_mask_and_a_step_agree_about_escapes() -> None:
    fsm = compiled({"type": "string", "maxLength": 3}, ANY_ESCAPE)
    for state in range(1, fsm.materialize(max_states=60)):
        allowed = fsm.allowed_tokens(state)
        assert allowed == {t for t in range(fsm.vocabulary.size) if fsm.next_state(state, t) >= 0}


def test_a_vocabulary_that_lacks_characters_of_escapes_writes_none_but_the_minimal_ones() -> None:
    vocabulary = Vocabulary([*(character.encode() for character in '"\\abn'), None], [5])
    fsm = compiled({"type": "string"}, ANY_ESCAPE, vocabulary)
    assert accepts(fsm, r'"\\n\\"')
    assert any("minimal spelling" in note for note in fsm.notes)
