"""Regular expressions against Python's `re`, where both dialects agree, and the refusal of all the rest."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import Limits, compile_grammar
from grammar_workers.errors import (
    GrammarError,
    InvalidSpecificationError,
    UnsatisfiableError,
    UnsupportedFeatureError,
)
from grammar_workers.languages.regex.compile import compile_regex
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

COMMON = "ab0 _-\t😀"
"""Characters about which ECMA-262 and Python never disagree."""
DIVIDED = "aé٣\n\r\u2028\u00a0\ufeff\x1c_"
"""Characters that one dialect calls a letter, a digit, a space or the end of a line, and the other does not."""

_literals = st.sampled_from(["a", "b", "0", "-", "_", r"\.", r"\-", r"\t", "😀", r"\u0061", r"\x62", r"\u{1F600}", "é"])
_classes = st.sampled_from(
    [".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "[ab]", "[^ab]", "[a-c0]", r"[\d_]", r"[^\w]", r"[\s\S]", "[-a]"]
    + ["[a-]", r"[\]\\a]", "[^\\d\\s]", "[é-😀]", "[.]"]
)
_atoms = st.one_of(_literals, _classes)


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.sampled_from(["({})", "(?:{})", "(?P<n{}>{})"])
    quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?", "+?", "??", "{1,2}?"])
    counter = itertools.count()

    def group(parts: tuple[str, str]) -> str:
        shape, body = parts
        return shape.format(next(counter), body) if shape.count("{}") == 2 else shape.format(body)

    grouped = st.tuples(groups, inner).map(group)
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner | st.just(""), min_size=2, max_size=3).map("|".join).map("(?:{})".format),
        st.tuples(grouped | _atoms, quantifiers).map("".join),
        grouped,
    )


patterns = st.recursive(_atoms, _combine, max_leaves=6)
anchored = st.tuples(st.sampled_from(["", "^"]), patterns, st.sampled_from(["", "$"])).map("".join)


def python(pattern: str) -> re.Pattern[str]:
    """Python's reading of a pattern; it has no braced escapes."""
    return re.compile(pattern.replace(r"\u{1F600}", "😀"))


@settings(PROPERTY, max_examples=300)
@given(pattern=patterns, texts=st.lists(st.text(COMMON, max_size=5), min_size=10, max_size=10))
def test_whole_matches_are_those_of_python(pattern: str, texts: list[str]) -> None:
    automaton = compile_regex(pattern, search=False, limits=Limits())
    expected = python(pattern)
    for text in texts:
        assert bool(automaton.classify(text)) == bool(expected.fullmatch(text)), text


@settings(PROPERTY, max_examples=300)
@given(pattern=anchored, texts=st.lists(st.text(COMMON, max_size=5), min_size=10, max_size=10))
def test_searches_are_those_of_python(pattern: str, texts: list[str]) -> None:
    automaton = compile_regex(pattern, search=True, limits=Limits())
    expected = python(pattern)
    for text in texts:
        assert bool(automaton.classify(text)) == bool(expected.search(text)), text


@settings(PROPERTY, max_examples=300)
@given(pattern=anchored, texts=st.lists(st.text(DIVIDED + "ab0", max_size=4), min_size=10, max_size=10))
def test_where_dialects_differ_whatever_is_accepted_matches_in_python(pattern: str, texts: list[str]) -> None:
    searched = compile_regex(pattern, search=True, limits=Limits())
    whole = compile_regex(pattern, search=False, limits=Limits())
    expected = python(pattern)
    for text in texts:
        if searched.classify(text):
            assert expected.search(text), text
        if whole.classify(text):
            assert expected.fullmatch(text), text


@settings(PROPERTY, max_examples=60)
@given(pattern=patterns, texts=st.lists(st.text(COMMON + "é", max_size=4), min_size=5, max_size=5))
def test_tokens_spell_exactly_the_matches(pattern: str, texts: list[str]) -> None:
    """The same through the whole pipeline: characters as UTF-8, bytes as tokens."""
    automaton = compile_regex(pattern, search=False, limits=Limits())
    try:
        fsm = compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())
    except UnsatisfiableError:
        assert not any(map(automaton.classify, texts))
        return
    for text in texts:
        assert accepts(fsm, text) == bool(automaton.classify(text)), text


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"\d", "٣", False),  # Python only
        (r"\w", "é", False),  # Python only
        (r"\W", "é", False),  # ECMA only
        (r"\D", "٣", False),  # ECMA only
        (r"\s", "\ufeff", False),  # ECMA only
        (r"\s", "\x1c", False),  # Python only
        (r"\S", "\x1c", False),
        (r"\s", "\u00a0", True),
        (".", "\r", False),
        (".", "\u2028", False),
        (".", "é", True),
        ("[^a]", "\n", True),
        (r"[\w\W]", "é", True),
        (r"[\s\S]", "\ufeff", True),
        (r"[\d\D]", "٣", True),
        (r"[^\w\W]", "é", False),
        ("a$", "a\n", False),
        ("a{,2}", "a{,2}", None),
        ("a{", "a{", True),
        ("a{b}", "a{b}", True),
        ("a{2", "a{2", True),
        ("]", "]", True),
        ("}", "}", True),
        (r"\/", "/", True),
        (r"\cJ", "\n", True),
        (r"a\0", "a\0", True),
        ("a\0?[\0-b]", "a\0\0", True),
        ("[^\0]", "\0", False),
        (r"[^\x00-\x1f]", "\0", False),
        (r"\u{0}|\u0000", "\0", True),
        (r"[\b]", "\b", True),
        (r"\ud83d\ude00", "😀", True),
        (r"[\ud83d\ude00-\ud83d\ude02]", "😁", True),
        ("(?<name>a)", "a", True),
        ("", "", True),
        ("()", "", True),
        ("a||b", "", True),
        ("(|a)+", "aa", True),
        ("(a*)*", "aaa", True),
        ("(a*)+b", "b", True),
        ("^a|b$", "a", True),
        ("(^a)b", "ab", True),
        ("a^b", "ab", False),
    ],
)
def test_corner_of_the_dialects(pattern: str, text: str, matches: bool | None) -> None:
    """None: the dialects differ so much that the pattern must be refused."""
    if matches is None:
        with pytest.raises(GrammarError):
            compile_regex(pattern, search=False, limits=Limits())
    else:
        assert bool(compile_regex(pattern, search=False, limits=Limits()).classify(text)) == matches


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("a(b", 1),
        ("ab)", 2),
        ("[ab", 0),
        ("a[b-a]", 3),
        (r"[\d-z]", 3),
        ("*a", 0),
        ("a|+", 2),
        ("(?)", None),
        ("a{3,2}", 1),
        ("ab\\", 2),
        (r"\xg0", 0),
        (r"a\u12", 1),
        (r"\ud800", 0),
        (r"\u{110000}", 0),
        (r"\c1", 0),
        (r"\q", 0),
        ("a^*", 1),
        (r"a\b+", 1),
        ("a(?=b)*", 1),
        ("a(?<=b){2}", 1),
        (r"\pL", 0),
        ("(?P<1>a)", 0),
    ],
)
def test_malformed_patterns_are_refused_with_their_position(pattern: str, position: int | None) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())
    if position is not None:
        assert isinstance(caught.value, InvalidSpecificationError)
        assert caught.value.position == position
    with pytest.raises(GrammarError) as in_schema:
        compile_grammar(
            {"type": "json_schema", "schema": {"properties": {"a/b": {"pattern": pattern}}}}, bytes_vocabulary()
        )
    assert in_schema.value.position == caught.value.position
    assert in_schema.value.pointer == "/properties/a~1b/pattern"


@pytest.mark.parametrize(
    ("pattern", "position", "name"),
    [
        (r"(a)\1", 3, "back-reference"),
        (r"(?P<n>a)\k<n>", 8, "back-reference"),
        ("(?P<n>a)(?P=n)", 8, "back-reference"),
        ("a++", 2, "possessive quantifier"),
        ("a{2}+", 4, "possessive quantifier"),
        ("a**", 2, "repeated quantifier"),
        ("b(?>a)", 1, "atomic group"),
        ("(a)?(?(1)b|c)", 4, "conditional group"),
        ("a(?#b)", 1, "comment"),
        ("(?m)a", 0, "flag 'm'"),
        ("(?i-x:a)", 0, "flag 'x'"),
        ("a(?i)b", 1, "flag that does not stand at the beginning in a pattern is not supported; move it there"),
        ("(?~a)", 0, "group modifier"),
        (r"a\p{Nonsense}", 1, "the Unicode property 'Nonsense'"),
        (r"\p{sc=Klingon}", 0, "the Unicode property 'sc=Klingon'"),
        (r"a\Z", 1, r"\Z"),
        (r"\Aa", 0, r"\A"),
        ("a[]", 1, "an empty class"),
        ("(?<=a(?=b))b", 5, "a look-ahead inside a look-behind"),
        (r"(?<=a\b)b", 5, "a word boundary inside a look-behind"),
        ("(?<=a$)b", 5, "an end anchor inside a look-behind"),
    ],
)
def test_what_is_not_regular_or_not_common_is_refused_by_name(pattern: str, position: int, name: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())
    assert caught.value.position == position
    assert caught.value.message.startswith(name)


@pytest.mark.parametrize("pattern", ["a^", "$a", "[^\\s\\S]", "a[^\\d\\D]b", "a(?=b)", "(?!a)a", "(?<=a)a", r"a\bb"])
def test_patterns_that_nothing_matches(pattern: str) -> None:
    with pytest.raises(UnsatisfiableError, match="check anchors, lookarounds and classes"):
        compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())


@settings(PROPERTY, max_examples=300)
@given(st.text("ab01(){}[]*+?|^$\\.,-:=!<>Pdwsxu", max_size=10))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    """Never another exception, and never wider than what Python reads."""
    try:
        automaton = compile_regex(pattern, search=False, limits=Limits(max_regex_states=500))
    except GrammarError as error:
        assert error.position is None or 0 <= error.position <= len(pattern)
        return
    try:
        expected = re.compile(pattern)
    except re.error:
        # Named groups and braced escapes of ECMA-262; Python has no opinion.
        return
    for text in ("", "a", "b", "ab", "0", "aa", "1", "-", pattern):
        if automaton.classify(text):
            assert expected.fullmatch(text), text
