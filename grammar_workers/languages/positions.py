"""Positions: one fixed set of characters, or of token ids, a step, as many steps as there are sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa, restrict
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import agreed
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

Step = Sequence[str | TokenId]


def names_tokens(allowed: Sequence[Step]) -> bool:
    """True if some step lists token ids, so that the steps are no text alone."""
    return any(isinstance(item, int) for step in allowed for item in step)


def positions(allowed: Sequence[Step], limits: Limits, *, first: int = 0) -> Dfa:
    """The texts whose i-th character is one of `allowed[i]`, all of them characters.

    `first` is the number of the first step where these are some of many. Raises InvalidSpecificationError with pointer.
    """
    steps = []
    for number, step in enumerate(allowed, first):
        characters = []
        for index, character in enumerate(step):
            if not isinstance(character, str) or len(character) != 1 or has_surrogate(character):
                raise InvalidSpecificationError(
                    f"{character!a} is not one character; a position is one character",
                    pointer=f"/allowed/{number}/{index}",
                )
            characters.append(character)
        steps.append(parse.Characters(agreed(charset.of(characters))))
    return compile_tree(parse.Sequence(tuple(steps)), search=False, limits=limits)


def token_positions(allowed: Sequence[Step], vocabulary: Vocabulary, builder: PushdownBuilder, limits: Limits) -> int:
    """Write the states of steps of which some are token ids; returns the first.

    Raises InvalidSpecificationError for a step that holds both or names a token that cannot be generated, and
    UnsatisfiableError for characters that the vocabulary cannot spell.
    """
    following = builder.state(exit_label=0)
    last = len(allowed)
    for is_tokens, run in itertools.groupby(reversed(allowed), key=lambda step: isinstance(step[0], int)):
        steps = list(run)[::-1]
        last -= len(steps)
        if is_tokens:
            for number, step in reversed(list(enumerate(steps, last))):
                state = builder.state()
                builder.token_edges(state, _checked(step, number, vocabulary), following)
                following = state
        else:
            automaton = restrict(positions(steps, limits, first=last), vocabulary.alphabet)
            if automaton.is_empty:
                raise UnsatisfiableError("the vocabulary cannot spell these characters", pointer=f"/allowed/{last}")
            following = StringLowering(builder).raw_states(automaton, {1: following})[0]
    return following


def _checked(step: Step, number: int, vocabulary: Vocabulary) -> list[TokenId]:
    tokens = []
    for index, token in enumerate(step):
        pointer = f"/allowed/{number}/{index}"
        if not isinstance(token, int):
            raise InvalidSpecificationError(
                f"{token!a} among token ids; a position lists either characters or token ids", pointer=pointer
            )
        if not vocabulary.can_generate(token):
            raise InvalidSpecificationError(f"{token} is no token that can be generated here", pointer=pointer)
        tokens.append(token)
    return tokens
