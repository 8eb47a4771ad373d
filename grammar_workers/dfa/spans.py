"""The automaton of the spans of a text: over characters, sparse, and without circles."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa, minimize
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.dfa.suffix_automaton import distances, suffix_automaton
from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits

_MOST_CHARACTERS = 1 << 17
"""Of a text. So many take less than the time and the memory that a compilation may take."""
_MOST_COUNTED = 1 << 10
"""Characters of a longest span whose beginnings are counted: few unique items are ever asked for."""
_MOST_MOVES = 4_000_000
"""Of a `Dfa`, whose table has a place for each state and class of characters."""


@dataclasses.dataclass(frozen=True, eq=False)
class Spans:
    """The spans of a text as an automaton whose edges read classes of characters.

    Attributes:
        classes: The characters of each class: those that the text may be written with where it has one of them.
        start: The state in which matching begins; no edge leads back to it.
        first: Where the edges of each state begin, int64 [states + 1].
        read: The class that each edge reads, int32 [edges].
        targets: Where each edge leads, int32 [edges].
        accepting: 1 where a span may end, int32 [states].
        nearest: The fewest characters to the end of a span, int64 [states]; -1 for states that no span passes.
        furthest: The most characters to the end of a span, int64 [states].
    """

    classes: Sequence[str]
    start: int
    first: NDArray[np.int64]
    read: NDArray[np.int32]
    targets: NDArray[np.int32]
    accepting: NDArray[np.int32]
    nearest: NDArray[np.int64]
    furthest: NDArray[np.int64]

    @functools.cached_property
    def shortest(self) -> int:
        """The fewest characters of a span that is not empty; -1 if there is none."""
        targets = self.targets[self.first[self.start] : self.first[self.start + 1]]
        distances = self.nearest[targets]
        return int(distances[distances >= 0].min(initial=1 << 30)) + 1 if (distances >= 0).any() else -1

    @functools.cached_property
    def ends_everywhere(self) -> bool:
        """True if a span may end behind each of its characters."""
        return not (self.nearest > 0).any()

    @property
    def longest(self) -> int:
        """The most characters of a span."""
        return int(self.furthest[self.start])

    def least(self, low: int, high: int) -> int:
        """Return how many spans of `low` to `high` characters there are at least: beginnings of a longest span."""
        if self.ends_everywhere:
            return min(high, self.longest) - low + 1
        state, found = self.start, 0
        for length in range(min(high, self.longest, _MOST_COUNTED) + 1):
            found += length >= low and bool(self.accepting[state])
            if length < self.longest:
                targets = self.targets[self.first[state] : self.first[state + 1]]
                state = int(targets[self.furthest[targets].argmax()])
        return max(found, 1)

    def dfa(self, limits: Limits) -> Dfa:
        """Return the same language as a `Dfa`, for operations on languages. Raises LimitExceededError."""
        number_of = {character: number for number, same in enumerate(self.classes) for character in same}
        starts = charset.class_starts([charset.singles(map(ord, number_of))])
        many = len(self.accepting)
        if many > 2 * limits.max_regex_states or many * len(starts) > _MOST_MOVES:
            raise LimitExceededError(
                f"the text of {self.longest} characters is too long beside other conditions on the same string; "
                "leave them out (minLength and maxLength may stay, of whole words one of them), or shorten the text "
                "(fixed limit max_regex_states)"
            )
        budget_of(limits).spend(many * len(starts) // 4)
        # Letter 0 is every character that the text lacks.
        moves = np.full((many, len(self.classes) + 1), DEAD, np.int32)
        moves[np.repeat(np.arange(many), np.diff(self.first)), self.read + 1] = self.targets
        # Matching begins in state 0, and nothing leads back to where it begins or to what has been state 0.
        moves[[0, self.start]] = moves[[self.start, 0]]
        accepting = self.accepting.copy()
        accepting[[0, self.start]] = accepting[[self.start, 0]]
        letters = [number_of.get(chr(start), -1) + 1 for start in starts]
        return minimize(Dfa(tuple(starts), np.ascontiguousarray(moves[:, letters]), tuple(accepting.tolist())))


def spans_of(
    text: str,
    limits: Limits,
    allowed: Charset = charset.ALL,
    *,
    whole_words: bool = False,
    case_sensitive: bool = True,
) -> Spans:
    """Build the automaton of the spans of `text` that consist of `allowed` characters.

    Args:
        text: Without surrogates.
        limits: `max_steps` is heeded.
        allowed: The characters that can be written.
        whole_words: Let no span begin or end between two word characters (`\\w` of Python's `re`).
        case_sensitive: Take letters as they are written. False: also in their lower and upper case.

    Raises:
        LimitExceededError: The text is too long.
    """
    if len(text) > _MOST_CHARACTERS:
        raise LimitExceededError(f"the text has {len(text)} characters, more than {_MOST_CHARACTERS}")
    budget = budget_of(limits)
    budget.spend(8 * len(text))
    codes, places = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    characters = list(map(chr, codes.tolist()))
    spelled = {one: one for one in characters} if case_sensitive else _spellings(characters)
    number_of = {same: number for number, same in enumerate(dict.fromkeys(spelled.values()))}
    symbols = np.array([number_of[spelled[character]] for character in characters], np.int32)[places]
    if whole_words:
        # A symbol of its own stands wherever a span may begin or end: where it does is seen from the characters beside.
        inside = np.array([re.match(r"\w", character) is not None for character in characters], bool)[places]
        between = np.flatnonzero(~np.concatenate([[False], inside[1:] & inside[:-1], [False]][: 1 + 2 * bool(text)]))
        symbols = np.insert(symbols, between, len(number_of))
    sources, read, targets, lengths = suffix_automaton(np.ascontiguousarray(symbols, np.int32))
    accepting = np.ones(len(lengths), np.int32)
    start = 0
    if whole_words:
        sources, read, targets, accepting, start = _without_marks(sources, read, targets, len(lengths), len(number_of))
    classes = [
        "".join([c for c in same if allowed == charset.ALL or charset.contains(allowed, ord(c))]) for same in number_of
    ]
    kept = np.array([bool(same) for same in classes], bool)[read] if len(read) else np.zeros(0, bool)
    order = np.argsort(sources[kept], kind="stable")
    budget.spend(len(order))
    read, targets = read[kept][order], targets[kept][order]
    first = np.concatenate([[0], np.cumsum(np.bincount(sources[kept], minlength=len(lengths)))]).astype(np.int64)
    nearest, furthest = distances(np.argsort(-lengths), first, targets, accepting)
    return Spans(classes, start, first, read, targets, accepting, nearest, furthest)


def _spellings(characters: Sequence[str]) -> dict[str, str]:
    """Each character of a text, and all that it may be written as where case is ignored."""
    members: dict[str, dict[str, None]] = {}
    for character in characters:
        one = _folded(character)
        spelled = members.setdefault(one, {})
        for other in (one, one.lower(), one.upper(), character):
            if len(other) == 1 and _folded(other) == one:
                spelled[other] = None
    return {character: "".join(members[_folded(character)]) for character in characters}


def _folded(character: str) -> str:
    """Return what a character is where case is ignored: one character, of a word if `character` is."""
    if character == "\u0345":  # no character of a word, but its casefold is
        return character
    return next((one for one in (character.casefold(), character.lower()) if len(one) == 1), character)


def _without_marks(
    sources: NDArray[np.int32], read: NDArray[np.int32], targets: NDArray[np.int32], states: int, mark: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], int]:
    """The edges without those that read `mark`, behind which their sources read what is read behind the mark.

    Between two characters either there is always a mark or never, so no state reads a character on both ways. Also
    returns where a mark may come, int32 [states], and the state behind the mark that everything begins with.
    """
    is_mark = read == mark
    behind = np.full(states, DEAD, np.int64)
    behind[sources[is_mark]] = targets[is_mark]
    sources, read, targets = sources[~is_mark], read[~is_mark], targets[~is_mark]
    order = np.argsort(sources, kind="stable")
    counts = np.bincount(sources, minlength=states)
    begin = np.cumsum(counts) - counts
    marked = np.flatnonzero(behind[1:] >= 0) + 1
    many = counts[behind[marked]]
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    copied = order[np.repeat(begin[behind[marked]], many) + within]
    start = int(behind[0])
    accepting = (behind >= 0).astype(np.int32)
    accepting[start] = 1
    return (
        np.concatenate([sources, np.repeat(marked, many).astype(np.int32)]),
        np.concatenate([read, read[copied]]),
        np.concatenate([targets, targets[copied]]),
        accepting,
        start,
    )
