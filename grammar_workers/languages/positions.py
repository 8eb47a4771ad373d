"""Position specifications: one set of characters or of token IDs for each position of the output.

`[["a", "b"], ["c"]]` allows the texts "ac" and "bc". An output has one character or token per set.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa, restrict
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import agreed
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.scalar_values import has_surrogate
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# The characters, or the token IDs, that are allowed at one position.
Step = Sequence[str | TokenId]


def names_tokens(allowed: Sequence[Step]) -> bool:
    """Return whether at least one set in `allowed` lists token IDs (integers) instead of characters."""
    return any(isinstance(item, int) for step in allowed for item in step)


def positions(allowed: Sequence[Step], limits: Limits, *, first: int = 0) -> Dfa:
    """Compile a list of sets of characters to a DFA. The text has one character of each set, in order.

    Args:
        allowed: The allowed characters at each position.
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.
        first: Index of `allowed[0]` in the whole specification, for the JSON Pointers of errors.

    Returns:
        The DFA of the texts whose i-th character is in `allowed[i]`.

    Raises:
        InvalidSpecificationError: An element is not a single character. The pointer names the element.
    """
    steps = []
    for number, step in enumerate(allowed, first):
        for index, character in enumerate(step):
            if not isinstance(character, str) or len(character) != 1 or has_surrogate(character):
                raise InvalidSpecificationError(
                    f"{character!a} is not one character; a position is one character",
                    pointer=f"/allowed/{number}/{index}",
                )
        steps.append(parse.Characters(agreed(charset.of(map(str, step)))))
    return compile_tree(parse.Sequence(tuple(steps)), search=False, limits=limits)


def token_positions(allowed: Sequence[Step], vocabulary: Vocabulary, builder: PushdownBuilder, limits: Limits) -> int:
    """Append the states of a position specification to the pushdown automaton under construction.

    If a set mixes characters and token IDs, or a token cannot be generated, InvalidSpecificationError is raised with
    the JSON Pointer of the element.

    Args:
        allowed: The set of each position: either characters or token IDs. No set is empty.
        vocabulary: The tokens that can be generated.
        builder: The pushdown automaton to extend.
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.

    Returns:
        The number, in `builder`, of the state before the first position.

    Raises:
        UnsatisfiableError: The vocabulary cannot encode the characters of some positions.
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
