"""Compiled loops over the rows of an automaton: finding equal ones."""

from __future__ import annotations

import numpy as np
from numba import int32, njit

from grammar_workers.numba_options import INNER, OPTIONS, called_with

DEAD = -1
"""No state: where a move that does not exist leads."""


@njit(inline="always", **OPTIONS)
def find_row(rows, buckets, row):  # type: ignore[no-untyped-def]
    """The place of a row with this content, or -1 - the bucket where its place belongs.

    `rows` are integers [n, columns], `buckets` int32 [power of two] a hash table of the places of some of them, -1
    where it is empty; some of it must be. The cost is one pass over the row, and one for each collision.
    """
    last = np.uint64(buckets.shape[0] - 1)
    mixed = np.uint64(0)
    for value in row:
        mixed = (mixed ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    # Products depend on bits below their own alone: without this, the high bits of the last value would not count.
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    bucket = (mixed ^ mixed >> np.uint64(32)) & last
    found = np.int64(buckets[bucket])
    while found >= 0 and not _same(rows[found], row):
        bucket = (bucket + np.uint64(1)) & last
        found = np.int64(buckets[bucket])
    return found if found >= 0 else np.int64(-1) - np.int64(bucket)


@njit(**OPTIONS, **INNER)
def laid_buckets(rows, many):  # type: ignore[no-untyped-def]
    """Fresh buckets for as many rows as there is room for, with the first `many`, which differ."""
    buckets = np.full(4 * rows.shape[0], -1, np.int32)
    for place in range(many):
        buckets[-1 - find_row(rows, buckets, rows[place])] = place
    return buckets


@njit(inline="always", **OPTIONS)
def _same(first, second):  # type: ignore[no-untyped-def]
    same = True
    for column in range(first.shape[0]):
        if first[column] != second[column]:
            same = False
            break
    return same


@called_with(int32[:, ::1])
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


@called_with(int32[:, ::1])
@njit(**OPTIONS)
def distinct_rows(rows):  # type: ignore[no-untyped-def]
    """The number of each row's content, int32 [rows], in the order of the first rows that have it, int64 [numbers].

    `rows` int32 [rows, columns].
    """
    many_rows = rows.shape[0]
    size = 16
    while size < 2 * many_rows:
        size *= 2
    buckets = np.full(size, -1, np.int32)
    numbers = np.empty(many_rows, np.int32)
    firsts = np.empty(many_rows, np.int64)
    many = np.int32(0)
    for row in range(many_rows):
        found = find_row(rows, buckets, rows[row])
        if found >= 0:
            numbers[row] = numbers[found]
            continue
        buckets[-1 - found] = row
        numbers[row] = many
        firsts[many] = row
        many += np.int32(1)
    return numbers, firsts[:many]
