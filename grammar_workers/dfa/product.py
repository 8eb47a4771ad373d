"""The reachable tuples of states of several automata that read the same letters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS


def reachable_tuples(
    tables: Sequence[NDArray[np.int32]], columns: Sequence[Sequence[int]], most: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Tuples int32 [n, automata] of states or -1, breadth first from all zeros, and moves int32 [n, letters] between
    them; None when there are more than `most`.

    `tables[i]` int32 [states, classes] holds the next state or -1; it reads letter l as class `columns[i][l]`.
    """
    widths = np.array([table.shape[1] for table in tables], np.int64)
    begins = np.cumsum([0, *(table.size for table in tables[:-1])])
    flat = np.concatenate([table.ravel() for table in tables])
    many, tuples, moves = _explore(flat, begins, widths, np.array(columns, np.int64), most)
    return None if many < 0 else (tuples[:many], moves[:many])


@njit(inline="always", **OPTIONS)
def _hash(reached):  # type: ignore[no-untyped-def]
    mixed = np.uint64(0)
    for state in reached:
        mixed = (mixed ^ np.uint64(state + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


@njit(**OPTIONS)
def _explore(flat, begins, widths, columns, most):  # type: ignore[no-untyped-def]
    automata, letters = columns.shape
    tuples = np.zeros((64, automata), np.int32)
    moves = np.empty((64, letters), np.int32)
    buckets = np.full(256, -1, np.int32)
    reached = np.zeros(automata, np.int32)
    buckets[_hash(reached) & np.uint64(255)] = 0
    many = np.int64(1)
    done = np.int64(0)
    while done < many:
        for letter in range(letters):
            for i in range(automata):
                state = np.int64(tuples[done, i])
                reached[i] = flat[begins[i] + state * widths[i] + columns[i, letter]] if state >= 0 else np.int32(-1)
            last = np.uint64(buckets.shape[0] - 1)
            bucket = _hash(reached) & last
            found = np.int64(buckets[bucket])
            while found >= 0:
                same = True
                for i in range(automata):
                    same = same and tuples[found, i] == reached[i]
                if same:
                    break
                bucket = (bucket + np.uint64(1)) & last
                found = np.int64(buckets[bucket])
            if found < 0:
                if many == most:
                    return np.int64(-1), tuples, moves
                if many == tuples.shape[0]:
                    tuples = np.concatenate((tuples, np.zeros_like(tuples)))
                    moves = np.concatenate((moves, np.empty_like(moves)))
                    buckets = np.full(4 * tuples.shape[0], -1, np.int32)
                    last = np.uint64(buckets.shape[0] - 1)
                    for number in range(many):
                        bucket = _hash(tuples[number]) & last
                        while buckets[bucket] >= 0:
                            bucket = (bucket + np.uint64(1)) & last
                        buckets[bucket] = number
                    bucket = _hash(reached) & last
                    while buckets[bucket] >= 0:
                        bucket = (bucket + np.uint64(1)) & last
                tuples[many] = reached
                buckets[bucket] = many
                found = many
                many += 1
            moves[done, letter] = found
        done += 1
    return many, tuples, moves
