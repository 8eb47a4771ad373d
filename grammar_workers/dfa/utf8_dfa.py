"""A character automaton over the bytes of UTF-8: a plain deterministic automaton, worked out where it is visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.utf8 import Bytes
from grammar_workers.memo import memoized


class Utf8Dfa:
    """Matching begins in state 0. States from `automaton.many_states` up are inside a character."""

    def __init__(self, automaton: Dfa) -> None:
        self._automaton = automaton
        # What the states inside a character read, and where it leads.
        self._partial: list[tuple[Bytes, tuple[int, ...]]] = []

    def accepts(self, state: int) -> bool:
        """Whether a text may end in `state`."""
        return state < self._automaton.many_states and bool(self._automaton.accepting[state])

    @memoized
    def row(self, state: int) -> NDArray[np.int64]:
        """Byte -> next state or -1, int64 [256]."""
        if state < self._automaton.many_states:
            targets, shape = self._automaton.moves_of(state)
            read = shape.bytes
        else:
            read, targets = self._partial[state - self._automaton.many_states]
        after = [
            targets[order[0]] if rest is None else self._inside(rest, tuple([targets[number] for number in order]))
            for _, rest, order in read.branches
        ]
        return np.array([-1, *after], np.int64)[read.slots]

    @memoized
    def _inside(self, rest: Bytes, targets: tuple[int, ...]) -> int:
        self._partial.append((rest, targets))
        return self._automaton.many_states + len(self._partial) - 1
