"""The cases that any teaching version of constrained decoding must show, by name and through the public API."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

import jsonschema
import pytest

from grammar_workers import Limits, TokenFSM, Vocabulary, compile_grammar, grammar_key
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.regex.compile import compile_regex
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, text_of


def regex(pattern: str) -> TokenFSM:
    return compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())


def schema(value: Any) -> TokenFSM:
    return compile_grammar({"type": "json_schema", "schema": value}, bytes_vocabulary())


def allowed(fsm: TokenFSM, text: str = "") -> set[bytes]:
    """The bytes of the tokens that may follow `text`."""
    state = fsm.initial_state
    for token in fsm.vocabulary.encode(text.encode()) or []:
        state = fsm.next_state(state, token)
    return {fsm.vocabulary.token_bytes(t) for t in fsm.allowed_tokens(state) - set(fsm.vocabulary.eos_token_ids)}


# -- regular expressions -------------------------------------------------------------------------------------------

TEXTS = [
    *["", "a", "b", "c", "ab", "ba", "abc", "aa", "aaa", "aaaa", "aab", "cab", "d", "1", "12", "123", "é", "\n", "a\n"],
    *[" ", "a b", ".", "a.c", "axc", "a\nc", "\\", "-", "_", "A", "abab", "ac", "acac", "[", "(a)", "a+", "a*", "\t"],
]


def check(*patterns: str) -> None:
    """Exactly the texts that Python's `re` matches are accepted."""
    for pattern in patterns:
        fsm = regex(pattern)
        for text in TEXTS:
            assert accepts(fsm, text) == bool(re.fullmatch(pattern, text)), (pattern, text)


def test_regex_literals() -> None:
    check("a", "abc", "é", "a b", " ")


def test_regex_alternation() -> None:
    check("a|b", "abc|aab|cab", "a|", "ab|a|b|")


def test_regex_character_classes() -> None:
    check("[abc]", "[a-c]+", "[a-zA-Z0-9]", "[-a]", "[.]", "[\\]\\[]")


def test_regex_negated_character_classes() -> None:
    check("[^a]", "[^a-c]+", "[^\\n]", "a[^b]c")


def test_regex_star() -> None:
    check("a*", "(ab)*", "a*b*", "[ab]*c")


def test_regex_plus() -> None:
    check("a+", "(ab)+", "a+b+")


def test_regex_question_mark() -> None:
    check("a?", "ab?c?", "(ab)?c?")


def test_regex_exact_count() -> None:
    check("a{3}", "(ab){2}", "a{0}", "[0-9]{2}")


def test_regex_bounded_count() -> None:
    check("a{2,3}", "(ab){1,2}", "a{0,1}")


def test_regex_open_count() -> None:
    check("a{2,}", "(ab){1,}", "a{0,}")


def test_regex_dot_is_no_line_feed() -> None:
    check(".", "a.c", ".*", ".+")
    assert b"\n" not in allowed(regex("."))


def test_regex_nested_groups() -> None:
    check("((a)(b))", "(a(b(c)))", "((a|b)(c|(ab)))+", "(?:a(?:b|c))*")


def test_regex_escapes() -> None:
    check(r"\.", r"\\", r"a\+", r"\(a\)", r"\n", r"\t", r"\[", r"a\*", r"\x61")


def test_regex_shorthands() -> None:
    # The texts are those about which all dialects agree; other digits and letters are the matter of test_regex.
    for pattern in (r"\d+", r"\w+", r"\s", r"\D", r"\S+", r"[\d_]", r"[^\s]", r"\w\s\w"):
        fsm = regex(pattern)
        for text in filter(str.isascii, TEXTS):
            assert accepts(fsm, text) == bool(re.fullmatch(pattern, text)), (pattern, text)


def test_regex_of_json_like_text() -> None:
    pattern = r'\{"a": (-?\d+|"[^"]*"|\[(\d(, \d)*)?\])(, "b": (true|false|null))?\}'
    good = ['{"a": -12}', '{"a": "x y", "b": null}', '{"a": []}', '{"a": [1, 2], "b": true}']
    bad = ['{"a": 1,}', '{"a": [1,2]}', '{"a": 1, "b": 2}', '{"b": true}', " {}", *(text[:-1] for text in good)]
    fsm = regex(pattern)
    assert all(json.loads(text) and accepts(fsm, text) for text in good)
    assert not any(accepts(fsm, text) or re.fullmatch(pattern, text) for text in bad)


def test_regex_empty_pattern() -> None:
    fsm = regex("")
    assert accepts(fsm, "")
    assert fsm.is_terminal(fsm.initial_state)
    assert allowed(fsm) == set()


def test_regex_minimisation_leaves_no_unreachable_and_no_dead_state() -> None:
    for pattern, states in (
        ("(a|b)*abb", 4),
        ("a|b|c", 2),
        ("(ab|cb)d?", 4),
        ("aa*|a", 2),
        ("(a*)*", 1),
        ("ab|a(?!b)c", 3),
    ):
        automaton = compile_regex(pattern, search=False, limits=Limits())
        assert len(automaton.moves) == states, pattern
        reachable = {0}
        for _ in automaton.moves:
            reachable |= {t for s in reachable for t in automaton.moves[s] if t >= 0}
        assert reachable == set(range(states))
        alive = {s for s in range(states) if automaton.accepting[s]}
        for _ in automaton.moves:
            alive |= {s for s in range(states) if alive & set(automaton.moves[s])}
        assert alive == set(range(states))


# -- JSON Schema ---------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    *[None, True, False, 0, 1, -1, 42, 1.5, -0.25, "", "a", "abc", 'say "é"\n', [], [1], [1, 2], [1, 2, 3], ["a"]],
    *[[None, True, "a", 1], [[1]], {}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"b": "x"}, {"a": {"b": {"c": 1}}}],
    *[{"a": {"b": {}}}, {"a": {"b": {"c": "x"}}}, "red", 3, [1, "red"], {"a": None}, {"c": [1, 2]}],
    *[["a", "é"], [{"a": 1}], [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": "x"}], [{"a": 1}, {}], "green", "gre", "redgreen"],
]


def check_values(*schemas: Any) -> None:
    """Exactly the values that `jsonschema` calls valid are accepted, written by Python's `json`."""
    for value in schemas:
        fsm = schema(value)
        validator = jsonschema.Draft202012Validator(value)
        for instance in VALUES:
            text = json.dumps(instance, ensure_ascii=False)
            assert accepts(fsm, text) == validator.is_valid(instance), (value, instance)
        for seed in range(3):
            text = text_of(fsm.vocabulary, random_walk(fsm, random.Random(seed))).decode()
            validator.validate(json.loads(text))


def test_json_string() -> None:
    check_values({"type": "string"})


def test_json_integer() -> None:
    check_values({"type": "integer"})


def test_json_number() -> None:
    check_values({"type": "number"})


def test_json_boolean() -> None:
    check_values({"type": "boolean"})


def test_json_null() -> None:
    check_values({"type": "null"})


def test_json_array() -> None:
    check_values({"type": "array"}, {"type": "array", "items": {"type": "integer"}})


def test_json_array_of_strings() -> None:
    check_values({"type": "array", "items": {"type": "string"}})


def test_json_array_of_objects() -> None:
    check_values({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}})


def test_json_object_without_declared_properties() -> None:
    empty = {"type": "object", "properties": {}}
    check_values(empty, {**empty, "additionalProperties": False})


def test_json_object() -> None:
    check_values({"type": "object"}, {"type": "object", "properties": {"a": {"type": "integer"}}})


def test_json_optional_and_required_properties() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}}
    for required in ([], ["a"], ["b"], ["a", "b"]):
        check_values(
            {"type": "object", "properties": properties, "required": required, "additionalProperties": False},
            {"type": "object", "properties": properties, "required": required},
        )


def test_json_objects_nested_three_deep() -> None:
    inner: Any = {"type": "integer"}
    for name in "cba":
        inner = {"type": "object", "properties": {name: inner}, "required": [name], "additionalProperties": False}
    check_values(inner)
    assert accepts(schema(inner), '{"a": {"b": {"c": 1}}}')


def test_json_enum_of_strings() -> None:
    check_values({"enum": ["red", "green", "blue"]})


def test_json_enums_of_mixed_types() -> None:
    check_values({"enum": ["red", 3, None, True, 1.5, [1, "red"], {"a": 1}]}, {"const": {"a": {"b": {"c": 1}}}})


def test_json_least_and_most_items() -> None:
    check_values(
        *({"type": "array", "minItems": low, "maxItems": high} for low, high in ((0, 1), (1, 2), (2, 2), (3, 9)))
    )


def test_json_least_and_most_characters() -> None:
    check_values(
        *({"type": "string", "minLength": low, "maxLength": high} for low, high in ((0, 0), (1, 2), (3, 3), (2, 9)))
    )


def test_json_nullable() -> None:
    check_values({"type": ["string", "null"]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]})


def test_json_object_of_all_types() -> None:
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "yes": {"type": "boolean"},
        "nothing": {"type": "null"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "inner": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        "choice": {"enum": ["red", 3, None]},
    }
    value = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    fsm = schema(value)
    instance = {
        "text": "é\n", "count": -3, "share": 0.5, "yes": True, "nothing": None, "list": [1, 2], "inner": {"name": "x"},
        "choice": "red",
    }  # fmt: skip
    assert accepts(fsm, json.dumps(instance, ensure_ascii=False))
    for name in properties:
        assert not accepts(fsm, json.dumps({k: v for k, v in instance.items() if k != name}, ensure_ascii=False))
    for seed in range(10):
        text = text_of(fsm.vocabulary, random_walk(fsm, random.Random(seed), longest=60)).decode()
        jsonschema.validate(json.loads(text), value)


# -- vocabularies --------------------------------------------------------------------------------------------------


def test_vocabulary_index_of_a_few_tokens() -> None:
    vocabulary = Vocabulary([b"a", b"bc", "é".encode(), None], [3], size=5)
    assert list(map(vocabulary.token_bytes, range(len(vocabulary)))) == [b"a", b"bc", b"\xc3\xa9", b"", b""]
    assert vocabulary.encode("bcaé".encode()) == [1, 0, 2] and vocabulary.encode(b"b") is None


def test_vocabulary_special_tokens_are_never_allowed_but_end_tokens_at_the_end() -> None:
    vocabulary = Vocabulary([b"a", b"b", None, b"<end>", b"</s>"], [3, 4], {"<tool>": 2})
    fsm = compile_grammar({"type": "regex", "pattern": "a?b|<end>"}, vocabulary)
    assert fsm.allowed_tokens(fsm.initial_state) == {0, 1}
    after = fsm.next_state(fsm.initial_state, 1)
    assert fsm.allowed_tokens(after) == {3, 4}
    assert fsm.next_state(fsm.initial_state, 2) == fsm.next_state(fsm.initial_state, 3) == -1
    assert fsm.next_state(after, 3) == fsm.next_state(after, 4) == fsm.end_state
    assert fsm.allowed_tokens(fsm.end_state) == set()


def test_vocabulary_byte_fallback_and_characters_of_many_bytes() -> None:
    euro = "€".encode()
    vocabulary = Vocabulary([b"a", euro, *(bytes([byte]) for byte in euro), None], [5])
    fsm = compile_grammar({"type": "regex", "pattern": "a€a"}, vocabulary)
    after = fsm.next_state(fsm.initial_state, 0)
    assert fsm.allowed_tokens(after) == {1, 2}
    by_bytes = after
    for token in (2, 3, 4):
        assert token in fsm.allowed_tokens(by_bytes)
        by_bytes = fsm.next_state(by_bytes, token)
    assert by_bytes == fsm.next_state(after, 1)
    assert fsm.allowed_tokens(by_bytes) == {0}


def test_vocabulary_allowed_tokens_at_the_start() -> None:
    assert allowed(regex("abc|x")) == {b"a", b"ab", b"abc", b"x"}
    assert allowed(schema({"type": "boolean"})) == {b"t", b"f", b"tru", b"true"}


def test_vocabulary_allowed_tokens_in_the_middle() -> None:
    assert allowed(regex("abab?"), "ab") == {b"a", b"ab"}
    assert allowed(schema({"type": "boolean"}), "tr") == {b"u"}


def test_vocabulary_tokens_that_span_borders_of_the_grammar() -> None:
    value = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    fsm = schema(value)
    assert b'"}' in allowed(fsm, '{"a": "x')
    assert b'{"' in allowed(fsm)
    assert b'": ' in allowed(fsm, '{"a')
    state = fsm.initial_state
    for piece in (b'{"', b"a", b'": ', b'"a', b'"}'):
        state = fsm.next_state(
            state, next(t for t in fsm.allowed_tokens(state) if fsm.vocabulary.token_bytes(t) == piece)
        )
    assert fsm.is_terminal(state)


def test_vocabulary_no_token_leads_to_a_dead_state() -> None:
    # "x" can only go on with "y", which this vocabulary cannot spell.
    vocabulary = Vocabulary([b"a", b"b", b"x", None], [3])
    fsm = compile_grammar({"type": "regex", "pattern": "ab|xy"}, vocabulary)
    assert fsm.allowed_tokens(fsm.initial_state) == {0}
    assert fsm.next_state(fsm.initial_state, 2) == -1
    with pytest.raises(UnsatisfiableError):
        compile_grammar({"type": "regex", "pattern": "xy"}, vocabulary)


def test_vocabulary_simulation_token_by_token() -> None:
    """A model that wants everything at random: every step is inside the mask, and the end is a valid text."""
    vocabulary = bytes_vocabulary()
    value = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["age"],
    }
    validator = jsonschema.Draft202012Validator(value)
    rng = random.Random(5)
    for specification, valid in (
        ({"type": "json_schema", "schema": value}, lambda text: validator.is_valid(json.loads(text))),
        ({"type": "regex", "pattern": r"\d{3}-[a-f]+(,[A-Z]{2})*"}, re.compile(r"\d{3}-[a-f]+(,[A-Z]{2})*").fullmatch),
        ({"type": "choice", "choices": ["ab", "abc", "b"]}, ["ab", "abc", "b"].__contains__),
    ):  # fmt: skip
        fsm = compile_grammar(specification, vocabulary)
        for _ in range(5):
            state, tokens = fsm.initial_state, []
            while state != fsm.end_state:
                if len(tokens) == 40:
                    tokens += fsm.shortest_completion(state)
                    break
                mask = fsm.allowed_mask(state)
                token = rng.choice(sorted(fsm.allowed_tokens(state)))
                assert mask[token // 32] >> (token % 32) & 1
                state = fsm.next_state(state, token)
                assert state >= 0
                if token not in vocabulary.eos_token_ids:
                    tokens.append(token)
            assert valid(text_of(vocabulary, tokens).decode())


def test_vocabulary_cache_miss_then_hit() -> None:
    store = open_store("memory://")
    specification = {"type": "regex", "pattern": "a{2,3}"}
    key = grammar_key(specification, bytes_vocabulary().fingerprint)
    assert store.get(key) is None
    compiled = compile_grammar(specification, bytes_vocabulary())
    assert compiled.key == key
    store.put(key, compiled.to_bytes())
    data = store.get(key)
    assert data is not None
    loaded = TokenFSM.from_bytes(data, bytes_vocabulary())
    for text in ("a", "aa", "aaa", "aaaa"):
        assert accepts(loaded, text) == accepts(compiled, text) == (text in ("aa", "aaa"))
    assert store.get(grammar_key({"type": "regex", "pattern": "a{2,4}"}, bytes_vocabulary().fingerprint)) is None
    assert set(key) <= set(string.hexdigits)
