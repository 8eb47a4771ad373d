"""Compiled loops (numba) that find equal rows of integer tables, such as the transition tables of automata."""

from __future__ import annotations

import numpy as np
from numba import int32, njit

from grammar_workers.numba_options import INNER, OPTIONS, called_with

# Marks the absence of a state: the target of a move that does not exist.
DEAD = -1


@njit(inline="always", **OPTIONS)
def find_row(rows, buckets, row):  # type: ignore[no-untyped-def]
    """Find a row with a given content through a hash table.

    The cost is one pass over the content, and one pass for each collision. Nothing is changed.

    Args:
        rows: Integers [n, columns].
        buckets: Hash table of the indices of some rows, int32 [power of two]; -1 where empty. At least one is empty.
        row: The content, integers [columns].

    Returns:
        Index of the row, if the hash table has a row with this content. Otherwise -1 - b, where b is the empty bucket
        for the index of a new row with this content.
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
    """Return a new hash table for `find_row` that holds the first `many` rows of `rows`; these must differ.

    Args:
        rows: Integers [capacity, columns]; the capacity is a power of two.
        many: Number of rows to insert.

    Returns:
        Indices of rows, or -1 where empty, int32 [4 * capacity]; there is room for all rows up to the capacity.
    """
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
    """Replace target states in a transition table by numbers; states that differ only in targets get equal rows.

    A letter is a class of characters. The targets of each state are numbered from 0 in the order of their first
    letters.

    Args:
        moves: Next state, or -1 for none, int32 [states, letters].

    Returns:
        Two arrays, int32 [states, letters] each. First, for each state its distinct targets by number, padded with -1.
        Second, the number of the target for each state and letter; -1 for none.
    """
    states, letters = moves.shape
    targets = np.full((states, letters), DEAD, np.int32)
    numbers = np.empty((states, letters), np.int32)
    # For each target, the last state that led to it, and the target's number there.
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
    """Number the rows of a table so that equal rows have one number, in the order of first occurrence.

    Args:
        rows: The table, int32 [rows, columns].

    Returns:
        Two arrays. First, the number of each row, from 0, int32 [rows]. Second, for each number the index of the first
        row that has it, int64 [numbers].
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
