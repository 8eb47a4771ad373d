"""Strings: characters as UTF-8 with one spelling each, lengths in code points, and the precomputed rows inside them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import sentencepiece_vocabulary, tekken_vocabulary
from grammar_workers import Limits, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.dfa.dfa import relabel
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.json_schema.solve.strings import length_automaton
from grammar_workers.languages.regex.compile import compile_regex
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import PATTERNS, is_valid, write
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    random_walk,
    states_along,
    text_of,
)

BORDERS = [
    0x00,
    0x1F,
    0x20,
    0x22,
    0x5C,
    0x7F,
    0x80,
    0x7FF,
    0x800,
    0xFFF,
    0x1000,
    0xCFFF,
    0xD000,
    0xD7FF,
    0xE000,
    0xFFFF,
]
BORDERS += [0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF]
"""Where the encoding of characters changes its form."""
SCALARS = 0x110000 - 0x800
"""How many characters there are: code points less surrogates."""

characters = st.one_of(st.sampled_from(BORDERS).map(chr), st.characters(exclude_categories=["Cs"]))


def compiled(schema: dict[str, Any], vocabulary: Vocabulary | None = None) -> TokenFSM:
    return compile_grammar({"type": "json_schema", "schema": schema}, vocabulary or bytes_vocabulary())


def count_texts(fsm: TokenFSM, length: int) -> Counter[int]:
    """How many texts of 0 to `length` bytes are in the language, by bytes: paths of single-byte tokens."""
    paths = Counter({fsm.initial_state: 1})
    found: Counter[int] = Counter()
    for size in range(length + 1):
        found[size] = sum(many for state, many in paths.items() if fsm.is_terminal(state))
        following: Counter[int] = Counter()
        for state, many in paths.items():
            for byte in range(256):
                target = fsm.next_state(state, byte)
                if target >= 0:
                    following[target] += many
        paths = following
    return found


# -- characters --------------------------------------------------------------------------------------------------


def test_every_character_has_exactly_one_spelling_in_a_string() -> None:
    fsm = compiled({"type": "string", "minLength": 1, "maxLength": 1})
    expected = Counter(len(write(chr(code)).encode()) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert +count_texts(fsm, 10) == expected
    assert sum(expected.values()) == SCALARS


def test_every_character_has_exactly_one_spelling_in_plain_text() -> None:
    fsm = compile_grammar({"type": "regex", "pattern": r"[\s\S]"}, bytes_vocabulary())
    assert sum(count_texts(fsm, 5).values()) == SCALARS


@settings(PROPERTY, max_examples=100)
@given(ends=st.tuples(characters, characters).map(sorted), others=st.lists(characters, min_size=5, max_size=5))
def test_a_range_of_characters_ends_where_it_says(ends: list[str], others: list[str]) -> None:
    low, high = ends
    fsm = compile_grammar({"type": "json_schema", "schema": {"pattern": _range(low, high)}}, bytes_vocabulary())
    raw = compile_grammar({"type": "regex", "pattern": _range(low, high, anchored=False)}, bytes_vocabulary())
    near = [chr(ord(end) + step) for end in ends for step in (-1, 0, 1) if 0 <= ord(end) + step < 0x110000]
    for character in {*near, *others, *map(chr, BORDERS)}:
        if 0xD800 <= ord(character) < 0xE000:
            continue
        assert accepts(fsm, write(character)) == (low <= character <= high), ascii(character)
        assert accepts(raw, character) == (low <= character <= high), ascii(character)


def _range(low: str, high: str, anchored: bool = True) -> str:
    # NUL cannot be written in a pattern: the complement of everything above it can.
    first = f"\\u{{{ord(low):x}}}"
    if low == "\0":
        body = f"[^\\u{{{ord(high) + 1:x}}}-\\u{{10ffff}}]" if high < "\U0010ffff" else r"[\s\S]"
    else:
        body = f"[{first}-\\u{{{ord(high):x}}}]"
    if low == "\0" and ord(high) + 1 in range(0xD800, 0xE000):
        body = "[^\\ue000-\\u{10ffff}]"
    return f"^{body}$" if anchored else body


@pytest.mark.parametrize(
    "body",
    [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x80\x80\x80"]
    + [b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\x80", b"\xe2\x82", b"\xf0\x9f\x98"],
)
def test_only_utf8_is_generated(body: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        body.decode()
    assert not accepts(compiled({"type": "string"}), b'"' + body + b'"')
    assert not accepts(compile_grammar({"type": "regex", "pattern": r"[\s\S]*"}, bytes_vocabulary()), body)


@pytest.mark.parametrize(
    "spelling",
    [r"\u0041", r"\/", r"\u00e9", r"\ud83d\ude00", r"\ud800", r"\u000A", r"\u000a", r"\u001F", r"\x41", r"\u005c"]
    + [r"\u0022", "\t", "\n", "\0", "\\"],
)
def test_other_spellings_are_not_generated(spelling: str) -> None:
    assert not accepts(compiled({"type": "string"}), f'"{spelling}"')


@settings(PROPERTY, max_examples=80)
@given(text=st.text(characters, max_size=6), minimum=st.integers(0, 4), span=st.none() | st.integers(0, 3))
def test_lengths_count_characters(text: str, minimum: int, span: int | None) -> None:
    schema: dict[str, Any] = {"type": "string", "minLength": minimum}
    if span is not None:
        schema["maxLength"] = minimum + span
    fsm = compiled(schema)
    assert accepts(fsm, write(text)) == is_valid(schema, write(text))


@settings(PROPERTY, max_examples=150)
@given(
    pattern=st.sampled_from([*PATTERNS, "^(abc)*$", "^(aa|bbb)+$", "^a*b?$", "a.*b.*a", "^(?:ab){2,3}c?$"]),
    minimum=st.none() | st.integers(0, 7),
    maximum=st.none() | st.integers(0, 7),
    texts=st.lists(st.text("abcé😀", max_size=8), min_size=8, max_size=8),
    rng=st.randoms(use_true_random=False),
)
def test_pattern_and_length_together(
    pattern: str, minimum: int | None, maximum: int | None, texts: list[str], rng: random.Random
) -> None:
    schema: dict[str, Any] = {"type": "string", "pattern": pattern, "minLength": minimum, "maxLength": maximum}
    schema = {keyword: value for keyword, value in schema.items() if value is not None}
    try:
        fsm = compiled(schema)
    except UnsatisfiableError:
        assert not any(is_valid(schema, write(text)) for text in texts)
        return
    for text in texts:
        assert accepts(fsm, write(text)) == is_valid(schema, write(text)), text
    for _ in range(5):
        assert is_valid(schema, text_of(fsm.vocabulary, random_walk(fsm, rng, longest=12)).decode())


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": 3, "maxLength": 2},
        {"pattern": "^a$", "minLength": 2},
        {"pattern": "^(aa)*$", "minLength": 3, "maxLength": 3},
        {"pattern": "^a", "enum": ["b", "ba"]},
        {"enum": ["a", "bb"], "minLength": 3},
        {"enum": []},
        {"pattern": "^$", "minLength": 1},
    ],
)
def test_strings_that_do_not_exist(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsatisfiableError):
        compiled({"type": "string", **schema})


@pytest.mark.parametrize("schema", [{}, {"pattern": "^[a-z]*$"}, {"minLength": 99_999}, {"pattern": "^(abc)+$"}])
def test_long_lengths_are_counted_not_unrolled(schema: dict[str, Any]) -> None:
    """The automaton for 100,000 characters is as small as that for one hundred."""
    short = compiled(
        {"type": "string", **schema, **({"minLength": 99} if "minLength" in schema else {}), "maxLength": 100}
    )
    long = compiled({"type": "string", **schema, "maxLength": 100_000})
    assert long.nbytes < 2 * short.nbytes
    assert len(long.to_bytes()) < 2 * len(short.to_bytes())
    body = "abc" * 33_333
    state = states_along(long, long.vocabulary.encode(f'"{body}'.encode()) or [])[-1]
    if "minLength" not in schema:
        assert accepts(long, f'"{body}"')
    assert len(fsm_ends(long, state)) == 1
    if schema.get("pattern") != "^(abc)+$":
        assert accepts(long, f'"{body}a"')
    assert not accepts(long, f'"{body}aa"')


def fsm_ends(fsm: TokenFSM, state: int) -> list[int]:
    """The closing quote, when it is allowed."""
    return [token for token in (ord('"'),) if token in fsm.allowed_tokens(state)]


def test_nul_in_an_enumeration_is_a_character_like_any_other() -> None:
    fsm = compiled({"enum": ["a\0b", "\0"]})
    assert accepts(fsm, r'"a\u0000b"')
    assert accepts(fsm, r'"\u0000"')
    assert not accepts(fsm, '"a"')
    assert accepts(compiled({"const": {"\0": 1}}), '{"\\u0000": 1}')


@settings(PROPERTY, max_examples=60)
@given(
    texts=st.lists(st.text(characters, max_size=5), min_size=1, max_size=6),
    others=st.lists(st.text(characters, max_size=5)),
)
def test_enumerations_hold_exactly_their_texts(texts: list[str], others: list[str]) -> None:
    in_schema = compiled({"enum": texts})
    plain = compile_grammar({"type": "choice", "choices": texts}, bytes_vocabulary())
    for text in [*texts, *others, *(text[:-1] for text in texts), *(text + "a" for text in texts)]:
        assert accepts(in_schema, write(text)) == (text in texts)
        assert accepts(plain, text) == (text in texts)


# -- precomputed rows --------------------------------------------------------------------------------------------

IN_STRINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": "string"}, ['"', '"a', '"a\\', '"\\u', '"\\u00', '"\\u001', '"é', '"\\"']),
    ({"type": "array", "items": {"type": "string"}}, ['["', '["ab", "', '["ab']),
    ({"type": "string", "maxLength": 3}, ['"', '"a', '"ab', '"abc', '"é\\', '"ab\\u']),
    ({"type": "string", "minLength": 4, "maxLength": 9}, ['"', '"abc', '"abcd', '"abcdefgh', '"abcdefghi']),
    ({"type": "string", "minLength": 20}, ['"', '"abcdefghijklmnopqr', '"abcdefghijklmnopqrstuv']),
    (
        {"type": "object", "additionalProperties": {"type": "string", "maxLength": 6}},
        ['{"', '{"a', '{"a": "b', '{"a": "b", "'],
    ),
    (
        {"type": "object", "properties": {"ab": {"type": "string"}, "abc": True, "name": {"type": "null"}}},
        ['{"', '{"a', '{"ab', '{"abc', '{"b', '{"na', '{"abc": "', '{"name": null, "', '{"ab\\'],
    ),
    (
        {"type": "object", "properties": {"ab": {"type": "string"}, "é": True}, "required": ["é", "ab"]},
        ['{"', '{"a', '{"ab": "x', '{"ab": "", "', '{"ab": "", "é": 1, "', '{"ab": "", "é": 1, "a'],
    ),
    (
        {"anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"a": {"type": "string"}}}]},
        ['{"', '{"a', '{"b', '{"a": "', '{"a": 1, "', '{"a": 1, "a'],
    ),
    # Every character may follow, but only for a few more, or only where the counter lets them.
    (
        {"type": "string", "pattern": r"^(?:\S+\s+){0,9}\S+$"},
        ['"', '"a b c d e', '"a b c d e f g h', '"a b c d e f g h ', '"a b c d e f g h i j'],
    ),
    (
        {"type": "string", "pattern": r"^(?:\S+\s+){0,29}\S+$", "maxLength": 40},
        ['"', '"a b c', '"a b c d e f g h i j k l m n o', '"' + "a " * 19, '"' + "a" * 39],
    ),
    (
        {
            "patternProperties": {"netdir_(a|b)": {"type": "integer"}, "net_[a-z]+[0-9]+": {"type": "string"}},
            "properties": {"net": {"type": "null"}},
            "additionalProperties": False,
        },
        ['{"', '{"net', '{"netdir_', '{"netdir_a', '{"xnet_a', '{"net": null, "net_a'],
    ),
    (
        {
            "properties": {"_id": {"type": "integer"}, "$oid": {"type": "string"}},
            "patternProperties": {"[a-z0-9]": {"type": ["integer", "string"]}},
            "additionalProperties": {"type": "null"},
            "required": ["_id"],
        },
        ['{"', '{"_', '{"_id": 1, "', '{"_id": 1, "$', '{"_id": 1, "$oid": "", "_'],
    ),
]


@pytest.mark.parametrize("make", [tekken_vocabulary, sentencepiece_vocabulary])
@pytest.mark.parametrize(("schema", "prefixes"), IN_STRINGS)
def test_rows_inside_strings_are_those_of_a_plain_walk(schema: dict[str, Any], prefixes: list[str], make: Any) -> None:
    """The rows put together from precomputed slices, against single steps over the tokens.

    For one prefix over the whole vocabulary, for the others over every token with a quote or a backslash and a sample.
    """
    vocabulary = make()
    fsm = compiled(schema, vocabulary)
    rng = random.Random(11)
    telling = [t for t in range(vocabulary.size) if re.search(rb'["\\]', vocabulary.token_bytes(t))]
    for number, prefix in enumerate(prefixes):
        state = states_along(fsm, vocabulary.encode(prefix.encode()) or [])[-1]
        assert state > 0, prefix
        allowed = fsm.allowed_tokens(state)
        tokens: Any = rng.sample(range(vocabulary.size), 1500) + rng.sample(telling, min(len(telling), 1000))
        if number == 1:
            tokens = range(0, vocabulary.size, 4)
        for token in tokens:
            assert (fsm.next_state(state, token) >= 0) == (token in allowed), (prefix, vocabulary.token_bytes(token))


def test_a_token_that_closes_one_string_and_opens_another() -> None:
    """Tails after the closing quote: each is allowed exactly where the rest of it may follow."""
    vocabulary = bytes_vocabulary()
    tokens = {vocabulary.token_bytes(token): token for token in range(vocabulary.size)}
    fsm = compiled({"type": "array", "items": {"type": "string", "maxLength": 1}, "maxItems": 2}, vocabulary)
    first = states_along(fsm, vocabulary.encode(b'["') or [])[-1]
    second = states_along(fsm, vocabulary.encode(b'["x", "') or [])[-1]
    assert fsm.next_state(first, tokens[b'", "']) == second
    assert fsm.next_state(second, tokens[b'", "']) == -1
    assert fsm.next_state(first, tokens[b'"}']) == -1
    assert fsm.next_state(first, tokens[b'ab"']) == -1
    assert fsm.next_state(first, tokens[b'a"']) >= 0


def test_json_text_is_what_json_writes() -> None:
    """Random walks through free strings: one spelling each, so writing what was read gives the same text."""
    fsm = compiled({"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 3}, tekken_vocabulary())
    rng = random.Random(2)
    for _ in range(40):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng)).decode()
        assert write(json.loads(text)) == text


@pytest.mark.parametrize("starts", [(0,), (0, 1), (0, 3), (0, 2, 5), (0, 1, 2, 6)])
def test_lengths_are_labelled_by_their_interval(starts: tuple[int, ...]) -> None:
    automaton = length_automaton(starts, Limits())
    for interval, start in enumerate(starts, 1):
        end = starts[interval] - 1 if interval < len(starts) else ""
        by_pattern = compile_regex(rf"[\s\S]{{{start},{end}}}", search=False, limits=Limits())
        assert relabel(automaton, [int(label == interval) for label in range(len(starts) + 1)]) == by_pattern


BLOCKS = [
    # Second bytes that lead to other states than the first byte's other continuations.
    ("^(?:[\\u2000-\\u203f]|[\\u2040-\\u207f][a-z])+$", 3),
    ("^(?:[\\u0100-\\u013f]|[\\u0140-\\u017f][^a])*$", 2),
    ("^(?:[\\x00-\\x0f]|[\\x10-\\x1f][a-z])+$", 2),
    ("^(?:\\S+\\s+){0,2}\\S+$", 7),
]


@pytest.mark.parametrize(("pattern", "longest"), BLOCKS)
@pytest.mark.parametrize("bounded", [True, False])
def test_no_character_is_begun_that_cannot_be_ended(pattern: str, longest: int, bounded: bool) -> None:
    """Byte for byte: whatever may be read leads on to the end, and what is read is what the pattern matches."""
    fsm = compiled({"type": "string", "pattern": pattern, **({"maxLength": longest} if bounded else {})})
    rng = random.Random(5)
    single = np.zeros(fsm.vocabulary.size, bool)
    single[:256] = True
    for _ in range(60):
        state, read = fsm.initial_state, bytearray()
        for _ in range(rng.randrange(2, 40)):
            row = np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little")[: fsm.vocabulary.size]
            allowed = np.flatnonzero(row.astype(bool) & single).tolist()
            if not allowed:
                break
            # Bytes that are not ASCII are rare among what a pattern allows, and what this is about.
            byte = rng.choice([b for b in allowed if b >= 0x80 or b == 0x5C] or allowed)
            read.append(byte)
            state = fsm.next_state(state, byte)
        rest = b"".join(fsm.vocabulary.token_bytes(token) for token in fsm.shortest_completion(state))
        value = json.loads(bytes(read) + rest)
        assert re.search(pattern, value), value
        assert not bounded or len(value) <= longest
