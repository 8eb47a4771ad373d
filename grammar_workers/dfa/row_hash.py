"""Compiled loops over the rows of an automaton: what they have in common, and which lead to no dead end."""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.dfa.minimize import DEAD
from grammar_workers.numba_options import OPTIONS


@njit(**OPTIONS)
def numbered_rows(moves):  # type: ignore[no-untyped-def]
    """Per state its distinct targets in the order of their first letters, and `moves` with their numbers as targets.

    `moves` int32 [states, letters] of the next state or -1, which stays. Returns int32 [states, letters] padded with -1
    and int32 [states, letters].
    """
    states, letters = moves.shape
    targets = np.full((states, letters), DEAD, np.int32)
    numbers = np.empty((states, letters), np.int32)
    # The state in which a target was met last, and its number there.
    met = np.full(states, -1, np.int32)
    number = np.empty(states, np.int32)
    for state in range(states):
        count = np.int32(0)
        for letter in range(letters):
            target = moves[state, letter]
            if target >= 0 and met[target] != state:
                met[target] = state
                number[target] = count
                targets[state, count] = target
                count += np.int32(1)
            numbers[state, letter] = number[target] if target >= 0 else DEAD
    return targets, numbers


@njit(**OPTIONS)
def distinct_rows(rows):  # type: ignore[no-untyped-def]
    """The number of each row's content, int32 [rows], in the order of the first rows that have it, int64 [numbers].

    `rows` int32 [rows, columns].
    """
    many_rows, width = rows.shape
    size = 16
    while size < 2 * many_rows:
        size *= 2
    buckets = np.full(size, -1, np.int32)
    numbers = np.empty(many_rows, np.int32)
    firsts = np.empty(many_rows, np.int64)
    many = 0
    last = np.uint64(size - 1)
    for row in range(many_rows):
        mixed = np.uint64(0)
        for column in range(width):
            mixed = (mixed ^ np.uint64(np.uint32(rows[row, column]))) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        bucket = mixed & last
        found = buckets[bucket]
        while found >= 0:
            same = True
            for column in range(width):
                if rows[firsts[found], column] != rows[row, column]:
                    same = False
                    break
            if same:
                break
            bucket = (bucket + np.uint64(1)) & last
            found = buckets[bucket]
        if found < 0:
            found = np.int32(many)
            buckets[bucket] = found
            firsts[many] = row
            many += 1
        numbers[row] = found
    return numbers, firsts[:many]


@njit(**OPTIONS)
def tolerant_rows(moves, run):  # type: ignore[no-untyped-def]
    """The states from which no sequence of at most `run` letters leads to a dead end, ascending; int64 [states].

    `moves` int32 [states, letters] of the next state or -1.
    """
    states, letters = moves.shape
    tolerant = np.ones(states, np.bool_)
    following = np.empty(states, np.bool_)
    for _ in range(run):
        changed = False
        for state in range(states):
            lives = tolerant[state]
            for letter in range(letters):
                target = moves[state, letter]
                lives = lives and target >= 0 and tolerant[target]
            following[state] = lives
            changed = changed or lives != tolerant[state]
        if not changed:
            break
        tolerant, following = following, tolerant
    return np.flatnonzero(tolerant)
