"""Positions: one fixed set of characters a step, as many steps as there are sets."""

from __future__ import annotations

from collections.abc import Sequence

from grammar_workers import charset, regex_syntax
from grammar_workers.character_automaton import CharacterAutomaton
from grammar_workers.character_class import agreed
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.options import Limits
from grammar_workers.regex import compile_tree


def positions(allowed: Sequence[Sequence[str]], limits: Limits) -> CharacterAutomaton:
    """The texts whose i-th character is one of `allowed[i]`; InvalidSpecificationError with pointer."""
    steps = []
    for number, characters in enumerate(allowed):
        for index, character in enumerate(characters):
            if len(character) != 1 or "\ud800" <= character <= "\udfff":
                raise InvalidSpecificationError(
                    f"{character!a} is not one character; a position is one character",
                    pointer=f"/allowed/{number}/{index}",
                )
        steps.append(regex_syntax.Characters(agreed(charset.of(characters))))
    return compile_tree(regex_syntax.Sequence(tuple(steps)), search=False, limits=limits)
