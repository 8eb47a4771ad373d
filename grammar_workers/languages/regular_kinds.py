"""The regular kinds of specification as character automata: what `all_of` and `structural_tag` combine."""

from __future__ import annotations

from typing import TypeAlias

from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import Dfa, literal_set
from grammar_workers.dfa.spans import Spans, spans_of
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.automaton import automaton
from grammar_workers.languages.banned_words import banned_words
from grammar_workers.languages.positions import positions
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.languages.token_pattern import token_pattern
from grammar_workers.options import Limits
from grammar_workers.specification import (
    AutomatonSpecification,
    BannedWordsSpecification,
    ChoiceSpecification,
    PatternSpecification,
    PositionsSpecification,
    RegexSpecification,
    Substring,
    SubstringSpecification,
)

RegularSpecification: TypeAlias = (
    RegexSpecification
    | ChoiceSpecification
    | PatternSpecification
    | PositionsSpecification
    | AutomatonSpecification
    | SubstringSpecification
    | BannedWordsSpecification
)


def dfa_of(specification: RegularSpecification, limits: Limits) -> Dfa:
    """The automaton of the texts that a specification allows; raises GrammarError, pointers are relative to it."""
    if isinstance(specification, RegexSpecification):
        return compile_regex(specification.pattern, search=False, limits=limits)
    if isinstance(specification, PatternSpecification):
        return token_pattern(specification.elements, limits)
    if isinstance(specification, PositionsSpecification):
        return positions(specification.allowed, limits)
    if isinstance(specification, AutomatonSpecification):
        return automaton(specification, limits)
    if isinstance(specification, BannedWordsSpecification):
        return banned_words(
            specification.words,
            limits,
            case_sensitive=specification.case_sensitive,
            whole_words=specification.whole_words,
        )
    if isinstance(specification, SubstringSpecification):
        return spans(specification, limits).dfa(limits)
    return literal_set(dict.fromkeys(choices(specification), 1))


def spans(asked: Substring, limits: Limits, allowed: Charset = ALL) -> Spans:
    """The spans of a text that consist of `allowed` characters."""
    return spans_of(asked.text, limits, allowed, whole_words=asked.whole_words, case_sensitive=asked.case_sensitive)


def choices(specification: ChoiceSpecification) -> list[str]:
    """The distinct choices in order; InvalidSpecificationError for one that no text is equal to."""
    for index, choice in enumerate(specification.choices):
        if has_surrogate(choice):
            raise InvalidSpecificationError(
                f"the choice {choice!a} holds a lone surrogate", pointer=f"/choices/{index}"
            )
    return list(dict.fromkeys(specification.choices))
