"""Products of automata: a text's label is the verdict on the labels that the automata give it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_workers import Limits
from grammar_workers.dfa import dfa
from grammar_workers.dfa.dfa import Dfa, combine, literal_set
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.regex.compile import compile_regex
from tests.grammar_workers.properties import PROPERTY

PATTERNS = ("a*", "(ab|b)*", "[^a]*", "a{3,70}", "é|.b", "(?:aab|ba)+", "")


def automaton(pattern: str) -> Dfa:
    return compile_regex(pattern, search=False, limits=Limits())


@PROPERTY
@given(
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4),
    st.integers(0, 2**16 - 1),
    st.lists(st.text("abé\n", max_size=8), max_size=20),
)
def test_a_product_labels_texts_by_verdict(patterns: list[str], truths: int, texts: list[str]) -> None:
    parts = [automaton(pattern) for pattern in patterns]
    parts.append(literal_set({"ab": 2, "b": 1}))

    def verdict(found: tuple[int, ...]) -> int:
        number = sum((label > 0) << place for place, label in enumerate(found[:4]))
        return (truths >> number & 1) * (1 + found[-1])

    product = combine(parts, verdict, Limits())
    for text in [*texts, "", "ab", "b"]:
        assert product.classify(text) == verdict(tuple(part.classify(text) for part in parts))


@pytest.mark.parametrize("lengths", [(7, 11, 13), (97, 89)])
def test_products_are_as_large_as_they_must_be(lengths: tuple[int, ...]) -> None:
    parts = [automaton(f"(?:a{{{length}}})*") for length in lengths]
    product = combine(parts, all, Limits())
    least = 1
    for length in lengths:
        least *= length
    assert len(product.moves) == least
    rng = random.Random(3)
    for many in [0, least, 2 * least, *(rng.randrange(2 * least) for _ in range(20))]:
        assert bool(product.classify("a" * many)) == (many % least == 0)
    with pytest.raises(LimitExceededError, match="max_regex_states"):
        combine(parts, all, Limits(max_regex_states=least // dfa._PRODUCT - 1))


def test_every_text_is_a_verdict_without_any_hit() -> None:
    nothing: Any = literal_set({})
    product = combine([nothing], lambda found: 3 if not found[0] else 0, Limits())
    assert product.classify("") == product.classify("anything\U0010ffff") == 3
