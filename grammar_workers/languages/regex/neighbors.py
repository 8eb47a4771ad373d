"""Anchors and word boundaries as look-arounds: conditions on the characters before and after a position."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeAlias

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.languages.regex.character_class import ANYTHING, agreed
from grammar_workers.languages.regex.parse import Alternatives, Characters, Look, Sequence

# A set of characters, and True if no character of the set may stand there.
Neighbor: TypeAlias = tuple[Charset, bool]

ANY = Characters(ANYTHING)
_LINE_FEED = Characters(agreed(charset.of("\n")))
NO_LINE_FEED = Characters(agreed(charset.complement(charset.of("\n"))))
# `$` of Python's `re`: no text follows, except one line feed at the end of the text.
PYTHON_END = Look(Alternatives((NO_LINE_FEED, Sequence((_LINE_FEED, ANY)))), False, True, 0)


def between(pairs: Iterable[tuple[Neighbor, Neighbor]]) -> Alternatives:
    """Return a pattern that reads nothing and matches between given characters.

    Args:
        pairs: Pairs (condition on the character before, condition on the character after) of the position; one pair
            must hold. A condition is a pair (set, negative): the character must be in the set, or with `negative`, no
            character of the set may stand there.
    """
    return Alternatives(tuple(Sequence((_beside(*before, True), _beside(*after, False))) for before, after in pairs))


@functools.lru_cache(maxsize=64)
def _beside(characters: Charset, negative: bool, behind: bool) -> Look:
    return Look(Characters(agreed(characters)), behind, negative, 0)
