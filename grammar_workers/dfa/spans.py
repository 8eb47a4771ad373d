"""The automaton of the *spans* (substrings) of a text, over characters, as a sparse acyclic graph.

It is the suffix automaton of the text, whose edges read classes of characters: one character, or its upper and lower
case. For spans of whole words, the suffix automaton is built with a mark wherever a span may begin or end; then the
marks are removed.
"""

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

# Largest length of a text. Such a text compiles within the limits on time and memory of a compilation.
_MOST_CHARACTERS = 1 << 17
# Largest length of the prefixes that `least` counts: `minItems` with unique items is rarely larger.
_MOST_COUNTED = 1 << 10
# Largest size of the table of a `Dfa`: states times classes of characters.
_MOST_MOVES = 4_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Spans:
    """The spans (substrings) of a text as an automaton whose edges read classes of characters.

    A class has one character, or a character in its lower and upper case.

    Attributes:
        classes: For each class, its characters that may be written, as one string.
        start: The start state; no edge leads back to it.
        first: The edges of state i have the indices from `first[i]` to `first[i + 1] - 1`, int64 [states + 1].
        read: Class that each edge reads, int32 [edges].
        targets: Target state of each edge, int32 [edges].
        accepting: 1 for states where a span may end, else 0, int32 [states].
        nearest: Fewest characters from each state to the end of a span, int64 [states]; -1 if no end is reachable.
        furthest: Most characters from each state to the end of a span, int64 [states]; -1 if no end is reachable.
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
        """Length in characters of the shortest nonempty span (substring of the text); -1 if there is none."""
        targets = self.targets[self.first[self.start] : self.first[self.start + 1]]
        distances = self.nearest[targets]
        return int(distances[distances >= 0].min(initial=1 << 30)) + 1 if (distances >= 0).any() else -1

    @functools.cached_property
    def ends_everywhere(self) -> bool:
        """True if every prefix of a span (substring) is a span itself."""
        return not (self.nearest > 0).any()

    @property
    def longest(self) -> int:
        """Length of the longest span in characters."""
        return int(self.furthest[self.start])

    def least(self, low: int, high: int) -> int:
        """Return a lower bound, at least 1, of the number of spans (substrings) with `low` to `high` characters.

        The method counts only the spans that are prefixes of one longest span. The caller must ensure that a span with
        `low` to `high` characters exists.

        Args:
            low: Minimum length in characters.
            high: Maximum length in characters, inclusive.
        """
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
        """Return a minimal `Dfa` that accepts exactly the spans (substrings), with label 1, for Boolean operations.

        Args:
            limits: `max_regex_states` and `max_steps` limit the automaton.

        Raises:
            LimitExceededError: The automaton has too many states or too large a table.
        """
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
        # A `Dfa` starts in state 0. States 0 and `start` can be swapped because no edge leads to either of them.
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
    r"""Return the automaton of the spans (substrings) of a text that consist of allowed characters.

    Args:
        text: The text, without surrogates, of at most 131,072 characters.
        limits: `max_steps` bounds the work.
        allowed: The characters that can be written.
        whole_words: True if a span must not begin or end between two word characters (`\w` of Python's `re`).
        case_sensitive: True if letters keep their case. False if each may be written in its lower or upper case.

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
        # A mark stands wherever a span may begin or end; the two characters around a position decide this.
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
    """Map each character to all characters that may be written in place of it if case is ignored."""
    members: dict[str, dict[str, None]] = {}
    for character in characters:
        one = _folded(character)
        spelled = members.setdefault(one, {})
        for other in (one, one.lower(), one.upper(), character):
            if len(other) == 1 and _folded(other) == one:
                spelled[other] = None
    return {character: "".join(members[_folded(character)]) for character in characters}


def _folded(character: str) -> str:
    """Return the case-folded form of a character: one character, which is a word character if `character` is."""
    if character == "\u0345":  # no character of a word, but its casefold is
        return character
    return next((one for one in (character.casefold(), character.lower()) if len(one) == 1), character)


def _without_marks(
    sources: NDArray[np.int32], read: NDArray[np.int32], targets: NDArray[np.int32], states: int, mark: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], int]:
    """Remove the edges that read `mark`: their sources read what is read after the mark.

    Between two characters there is either always a mark or never, so no state reads one character both with and without
    a mark before it.

    Returns:
        The edges (sources, symbols, targets), each int32 [edges]; 1 for states where a span may end, int32 [states];
        and the start state, which is the state after the first mark.
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
