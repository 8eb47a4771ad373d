"""A character automaton over the bytes of UTF-8: a plain deterministic automaton, worked out where it is visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.utf8 import utf8_sequences

_Rests = tuple[tuple[tuple[tuple[int, int], ...], int], ...]
"""(inclusive ranges of the bytes that are missing, state after them) per run of characters."""


class Utf8Dfa:
    """Matching begins in state 0. States from `automaton.many_states` up are inside a character."""

    def __init__(self, automaton: Dfa) -> None:
        self._automaton = automaton
        self._partial: list[_Rests] = []
        self._ids: dict[_Rests, int] = {}
        self._rows: dict[int, NDArray[np.int64]] = {}

    def accepts(self, state: int) -> bool:
        """Whether a text may end in `state`."""
        return state < self._automaton.many_states and bool(self._automaton.accepting[state])

    def row(self, state: int) -> NDArray[np.int64]:
        """Byte -> next state or -1, int64 [256]."""
        known = self._rows.get(state)
        if known is None:
            many = self._automaton.many_states
            if state < many:
                ranges = self._automaton.ranges(state)
                options = [(sequence, target) for low, high, target in ranges for sequence in utf8_sequences(low, high)]
            else:
                options = list(self._partial[state - many])
            known = self._rows[state] = self._after_byte(options)
        return known

    def _after_byte(self, options: list[tuple[tuple[tuple[int, int], ...], int]]) -> NDArray[np.int64]:
        rests: dict[int, list[tuple[tuple[tuple[int, int], ...], int]]] = {}
        row = np.full(256, -1, np.int64)
        for (bounds, *rest), target in options:
            if not rest:
                row[bounds[0] : bounds[1] + 1] = target
                continue
            for byte in range(bounds[0], bounds[1] + 1):
                rests.setdefault(byte, []).append((tuple(rest), target))
        for byte, partial in rests.items():
            row[byte] = self._inside(tuple(partial))
        return row

    def _inside(self, rests: _Rests) -> int:
        known = self._ids.get(rests)
        if known is None:
            known = self._ids[rests] = self._automaton.many_states + len(self._partial)
            self._partial.append(rests)
        return known
