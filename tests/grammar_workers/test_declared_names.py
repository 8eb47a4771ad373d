"""Declared names beside free ones, byte by byte: what differs from a name inside of a character or an escape, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.languages.json_schema.solve import name_classes, sizes
from grammar_workers.pushdown.json_text import encode_string_body
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

NAMES = [
    ["é"],
    ["\\"],
    ["\n", "a"],
    ['"', "\\u"],
    ["é", "è", "éa"],
    ["名前", "名", "€"],
    ["\x01", "\x1f", "\x12b", "\n"],
    ["😀", "😁a", "\u2028"],
    ["a", "a\tb", "a\x7f", "a\u0301"],
]


def near_misses(body: bytes) -> Iterator[bytes]:
    """A name as it is written, and all that differs from it in one byte, lacks its end or has one more byte."""
    for position in range(len(body) + 1):
        yield body[:position]
        for byte in range(256):
            yield body[:position] + bytes([byte]) + body[position + 1 :]
            yield body[:position] + bytes([byte])
            yield body[:position] + bytes([byte]) + body[position:]
    # Other spellings of the same name.
    yield "".join(f"\\u{ord(character):04x}" for character in body.decode()).encode()


def is_valid(text: bytes, validator: Any) -> bool:
    """Whether this is JSON in its canonical spelling that satisfies the schema."""
    try:
        value = json.loads(text.decode())
    except ValueError:
        return False
    return json.dumps(value, ensure_ascii=False).encode() == text and validator.is_valid(value)


def check(fsm: TokenFSM, names: list[str], validator: Any) -> None:
    written = [encode_string_body(name) for name in names]
    for body in {miss for name in written for miss in near_misses(name)}:
        for value in (b"0", b"null"):
            text = b'{"' + body + b'": ' + value + b"}"
            assert accepts(fsm, text) == is_valid(text, validator), text


@pytest.mark.parametrize("names", NAMES, ids=ascii)
@pytest.mark.parametrize("order", ["declared", "any"])
def test_what_differs_from_a_declared_name_is_read_as_a_free_name(names: list[str], order: Any) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    options = GrammarOptions(property_order=order)
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary(), options=options)
    check(fsm, names, jsonschema.Draft202012Validator(schema))


@pytest.mark.parametrize("names", NAMES, ids=ascii)
def test_the_same_where_names_are_guarded(names: list[str]) -> None:
    """A required name must come before free ones may, and alternatives ask for different ones."""
    properties = {name: {"type": "null"} for name in names}
    schema = {
        "type": "object",
        "properties": properties,
        "anyOf": [{"required": [names[0]]}, {"required": ["zz"]}, {"maxProperties": 1, "required": [names[-1]]}],
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    check(fsm, names, jsonschema.Draft202012Validator(schema))


@pytest.mark.parametrize("names", NAMES, ids=ascii)
def test_masks_inside_of_names_say_what_steps_do(names: list[str]) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    vocabulary = bytes_vocabulary()
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    for body in map(encode_string_body, names):
        state = fsm.initial_state
        for byte in b'{"' + body + b'"':
            tokens = np.flatnonzero([fsm.next_state(state, token) >= 0 for token in range(vocabulary.size)])
            assert fsm.allowed_tokens(state) == set(tokens.tolist())
            state = fsm.next_state(state, byte)


def test_names_that_have_not_been_counted_to_their_end_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be any number of them: a list would take all the memory."""
    schema = {"minProperties": 2, "propertyNames": {"pattern": "^[ab]$"}, "additionalProperties": {"type": "null"}}
    few = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    assert accepts(few, '{"a": null, "b": null}') and not accepts(few, '{"a": null, "a": null}')
    listed: list[int] = []
    monkeypatch.setattr(name_classes, "_texts", lambda _, label: listed.append(label) or [])
    monkeypatch.setattr(sizes, "_MOST_MOVES", 0)
    # Counts are cached, so these are names that have not been counted yet.
    schema["propertyNames"] = {"pattern": "^[cd]$"}
    differing = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    assert accepts(differing, '{"c": null, "d": null}') and not accepts(differing, '{"c": null, "c": null}')
    assert not listed
