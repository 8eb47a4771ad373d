"""Conditions inside regular expressions (look-around, word boundaries, anchors anywhere) and flags, against `re`."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import Limits, compile_grammar
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.regex.leading_conditions import apart
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.test_regex import COMMON, DIVIDED, anchored, patterns
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

_fixed = st.sampled_from(["a", "b", r"\w", "[^a]", "ab", ".", "a|b", r"\d\d", "^a", "^"])
_conditions = st.one_of(
    st.sampled_from([r"\b", r"\B", "^", "$"]),
    st.tuples(st.sampled_from(["(?={})", "(?!{})"]), anchored).map(lambda pair: pair[0].format(pair[1])),
    st.tuples(st.sampled_from(["(?<={})", "(?<!{})"]), _fixed).map(lambda pair: pair[0].format(pair[1])),
)


def _with_conditions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=2).map("|".join).map("(?:{})".format),
        st.tuples(inner.map("(?:{})".format), st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map("".join),
        inner.map("(?={})".format),
        inner.map("(?!{})".format),
    )


conditional = st.recursive(_conditions | patterns, _with_conditions, max_leaves=5)


def python(pattern: str, flags: int = 0) -> re.Pattern[str] | None:
    """Python's reading of a pattern; None where group names collide."""
    try:
        return re.compile(pattern.replace(r"\u{1F600}", "😀"), flags)
    except re.error as error:
        assert "redefinition of group name" in str(error), (pattern, error)
        return None


@settings(PROPERTY, max_examples=150)
@given(pattern=conditional, texts=st.lists(st.text(COMMON, max_size=5), min_size=10, max_size=10))
def test_conditions_mean_what_they_mean_in_python(pattern: str, texts: list[str]) -> None:
    expected = python(pattern)
    if expected is None:
        return
    searched = compile_regex(pattern, search=True, limits=Limits())
    whole = compile_regex(pattern, search=False, limits=Limits())
    for text in texts:
        if not text and r"\B" in pattern:
            # ECMA-262 sees a `\B` in the empty text, Python does from version 3.14 on.
            continue
        assert bool(searched.classify(text)) == bool(expected.search(text)), text
        # `fullmatch` itself backtracks only within the pattern, so the end is made a part of it.
        assert bool(whole.classify(text)) == bool(re.fullmatch(f"(?:{expected.pattern})", text)), text


@settings(PROPERTY, max_examples=150)
@given(pattern=conditional, texts=st.lists(st.text(DIVIDED + "ab0", max_size=4), min_size=10, max_size=10))
def test_conditions_where_dialects_differ(pattern: str, texts: list[str]) -> None:
    """What is generated matches in Python; what Python matches is never outside of what either dialect matches."""
    expected = python(pattern)
    if expected is None:
        return
    both = compile_regex(pattern, search=True, limits=Limits())
    either = compile_regex(pattern, search=True, limits=Limits(), either=True)
    for text in texts:
        found = bool(expected.search(text))
        assert found or not both.classify(text), text
        assert either.classify(text) or not found, text


@pytest.mark.parametrize(
    "pattern", ["^$", "^ab$", "ab$", "^(a|b{2,3})$|^c$", "^(?:ab)*$", "a$|b$", "^a\n$", "^a\n?$", "^a$|b", "[^b]$"]
)
def test_only_the_end_is_disputed(pattern: str) -> None:
    """Of these patterns Python reads `$` alone in another way, so either dialect matches what Python matches."""
    either = compile_regex(pattern, search=True, limits=Limits(), either=True)
    for length in range(5):
        for text in map("".join, itertools.product("abc\n", repeat=length)):
            assert bool(either.classify(text)) == bool(re.search(pattern, text)), text


CASED = "aAbBkKsSiI0_ßẞſıİK"
"""Letters with more than one other case, Kelvin and the long s among them."""


@settings(PROPERTY, max_examples=60)
@given(
    pattern=st.lists(st.sampled_from([*CASED, "[a-k]", "[^a-k]", "[^S]", r"\w", "(?-i:a)", "."]), max_size=3).map(
        "".join
    ),
    texts=st.lists(st.text(CASED, max_size=3), min_size=10, max_size=10),
)
def test_ignoring_case(pattern: str, texts: list[str]) -> None:
    expected = re.compile(pattern, re.IGNORECASE)
    automata = [compile_regex(f"(?i){pattern}", search=False, limits=Limits(), either=e) for e in (False, True)]
    group = compile_regex(f"(?i:{pattern})", search=False, limits=Limits())
    assert group == automata[0]
    for text in texts:
        both, either = (bool(automaton.classify(text)) for automaton in automata)
        matches = bool(expected.fullmatch(text))
        assert both <= matches <= either, text
        if text.isascii() and r"\w" not in pattern:
            assert both == matches == either, text


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        # Word boundaries count only where ECMA-262 (ASCII letters) and Python (all letters) see the same.
        (r"a\b-", "a-", True),
        (r"a\bé", "aé", False),  # a boundary in ECMA-262 only
        (r"é\b-", "é-", False),  # a boundary in Python only
        (r"é\Bé", "éé", True),  # none in both
        (r"a\Bé", "aé", False),
        # Negation turns the common ground round: what one dialect matches is already excluded.
        (r"(?!\w)é", "é", False),
        (r"(?!\d)٣", "٣", False),
        (r"(?!a$)a\n?", "a\n", False),
        (r"(?i)ſ", "s", True),
        (r"(?i)k", "\u212a", True),
        (r"(?i)ß", "ẞ", True),
        (r"(?i)i", "İ", False),  # Python only
        (r"(?i)[^a]", "A", False),
        (r"(?i)\x41", "a", True),
        (r"(?s).", "\n", True),
        (r"(?s:.).", "\n\n", False),
        (r"\p{Lu}", "É", True),
        (r"\p{Uppercase_Letter}", "É", True),
        (r"\p{gc=Lu}", "é", False),
        (r"\P{Lu}", "é", True),
        (r"[^\P{Lu}a]", "É", True),
        (r"\p{Script=Greek}", "λ", True),
        (r"\p{sc=Grek}", "l", False),
        (r"[\p{L}\p{Nd}]+", "aλ٣", True),
        (r"\p{Alphabetic}", "Ⅳ", True),
        ("(?=(?=a)a)a", "a", True),
        ("(?!(?!a))a", "a", True),
        ("(?=.*[0-9])(?=.*[a-z])[0-9a-z]{4,8}", "abc1", True),
        ("(?=.*[0-9])(?=.*[a-z])[0-9a-z]{4,8}", "abcd", False),
        ("(?:(?!--).)*", "a-b-c", True),
        ("(?:(?!--).)*", "a--c", False),
        ("(?!.*(ab|ba)).{3}", "aab", False),
        ("a(?<!b)", "a", True),
        ("(?<=a+)b|aab", "aab", True),
        ("(?<=(?<=a)b)c|abc", "abc", True),
        (".b(?<=ab)", "ab", True),
        (".b(?<=ab)", "bb", False),
    ],
)
def test_corners_of_conditions(pattern: str, text: str, matches: bool) -> None:
    assert bool(compile_regex(pattern, search=False, limits=Limits()).classify(text)) == matches
    if matches:
        assert accepts(compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary()), text)


ZOD_HOSTNAME = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)


def test_a_condition_on_the_whole_text_beside_counts() -> None:
    """As `z.hostname()` writes it: too large as one pattern."""
    schema = {"type": "string", "format": "hostname", "pattern": ZOD_HOSTNAME}
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    label = "a" * 60
    for name in ("a.b-c.de", label, ".".join([label] * 4), ".".join([label] * 4 + ["b" * 9])):
        assert accepts(fsm, f'"{name}"') == (re.search(ZOD_HOSTNAME, name) is not None), name
    for name in ("", "-a", "a..b", "a" * 64, ".".join([label] * 5)):
        assert not accepts(fsm, f'"{name}"'), name


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("^(?=.{2,3}$)[ab)]+$", 2),
        (r"^(?=a[)]|\)b)(?=.{2}(a|b))[ab)]*$", 3),
        ("^(?=.*a)(?!b)[ab]+", 2),
        ("^(?=a)|b", 0),
        ("^(?=a)*b", 0),
        ("^(?:a|b)", 0),
        ("a(?=b)", 0),
        ("^(?=a", 0),
    ],
)
def test_conditions_that_stand_apart_mean_the_same(pattern: str, parts: int) -> None:
    found = apart(pattern)
    assert len(found) == parts
    for text in map("".join, itertools.chain.from_iterable(itertools.product("ab)", repeat=n) for n in range(5))):
        assert not found or all(re.search(one, text) for one in found) == (re.search(pattern, text) is not None), text
