"""A DFA over the bytes of UTF-8, made from a DFA over characters, with states that are created when first visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.utf8 import Bytes
from grammar_workers.memo import memoized


class Utf8Dfa:
    """Automaton over UTF-8 bytes that accepts the encoded texts of an automaton over characters.

    The start state is 0. A state number below `automaton.many_states` is a state of `automaton`; higher numbers are
    states inside a character. States are created when they are first reached.

    Args:
        automaton: The automaton over characters.
    """

    def __init__(self, automaton: Dfa) -> None:
        self._automaton = automaton
        # For each state inside a character: the bytes that remain of it, and the targets by target number.
        self._partial: list[tuple[Bytes, tuple[int, ...]]] = []

    def accepts(self, state: int) -> bool:
        """Return whether a text may end in `state`. False for every state inside a character."""
        return state < self._automaton.many_states and bool(self._automaton.accepting[state])

    @memoized
    def row(self, state: int) -> NDArray[np.int32]:
        """Return the next state for each byte, or -1 for none, int32 [256]. The array is shared: do not change it."""
        if state < self._automaton.many_states:
            targets, shape = self._automaton.rows[state]
            return shape.bytes.row(targets, self._inside)
        read, ends = self._partial[state - self._automaton.many_states]
        return read.row(ends, self._inside)

    @memoized
    def _inside(self, rest: Bytes, targets: tuple[int, ...]) -> int:
        self._partial.append((rest, targets))
        return self._automaton.many_states + len(self._partial) - 1
