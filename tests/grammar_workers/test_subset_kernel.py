"""The short ways through the subset construction against the long one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from grammar_workers import Limits
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.regex import determinize
from grammar_workers.languages.regex.compile import compile_regex, compile_tree
from grammar_workers.languages.regex.parse import read_regex
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.test_regex import anchored
from tests.grammar_workers.test_regex_conditions import conditional

LIMITS = Limits()


@settings(PROPERTY, max_examples=150)
@given(pattern=anchored | conditional)
def test_both_constructions_give_the_same_automaton(pattern: str) -> None:
    tree = read_regex(pattern, LIMITS)
    short = compile_regex(pattern, search=True, limits=LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(determinize, "MOST_BITS", 0)
        assert compile_tree(tree, search=True, limits=LIMITS) == short


@pytest.mark.parametrize(
    ("limits", "named"),
    [(Limits(max_regex_states=500), "max_regex_states"), (Limits(max_steps=2000), "max_steps")],
)
def test_what_is_too_large_is_refused(limits: Limits, named: str) -> None:
    with pytest.raises(LimitExceededError, match=named):
        compile_regex("a.{8}$", search=True, limits=limits)
    assert len(compile_regex("a.{8}$", search=True, limits=LIMITS).moves) > 500


def test_more_positions_than_the_dense_sets_hold() -> None:
    many = determinize.MOST_BITS
    automaton = compile_regex(f"a{{{many}}}", search=False, limits=LIMITS)
    assert len(automaton.moves) == many + 1
    assert automaton.classify("a" * many)
    assert not automaton.classify("a" * (many - 1))
