"""Rows of an automaton apart from where they lead to: what most states have in common."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.kernels import DEAD, OPTIONS


def numbered_rows(moves: NDArray[np.int32]) -> tuple[list[list[int]], NDArray[np.int32]]:
    """Per state its distinct targets in the order of their first letters, and `moves` with their numbers as targets.

    `moves` int32 [states, letters] of the next state or -1, which stays.
    """
    targets, counts, numbers = _numbered(moves)
    return [row[:count] for row, count in zip(targets.tolist(), counts.tolist(), strict=True)], numbers


@njit(**OPTIONS)
def _numbered(moves):  # type: ignore[no-untyped-def]
    states, letters = moves.shape
    targets = np.empty((states, letters), np.int32)
    counts = np.zeros(states, np.int32)
    numbers = np.empty((states, letters), np.int32)
    # The state in which a target was met last, and its number there.
    met = np.full(states, -1, np.int32)
    number = np.empty(states, np.int32)
    for state in range(states):
        for letter in range(letters):
            target = moves[state, letter]
            if target >= 0 and met[target] != state:
                met[target] = state
                number[target] = counts[state]
                targets[state, counts[state]] = target
                counts[state] += 1
            numbers[state, letter] = number[target] if target >= 0 else DEAD
    return targets, counts, numbers
