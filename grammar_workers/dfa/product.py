"""Product automata: the reachable tuples of states of several automata over a common set of letters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import boolean, int32, int64, njit
from numpy.typing import NDArray

from grammar_workers.dfa.row_hash import find_row, laid_buckets
from grammar_workers.numba_options import OPTIONS, called_with


def reachable_tuples(
    tables: Sequence[NDArray[np.int32]], columns: Sequence[Sequence[int]], most: int, *, all_alive: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Explore the product of several automata breadth first, from the tuple of their start states (0 each).

    A letter is a class of characters that each automaton treats alike.

    Args:
        tables: Transition table of each automaton: the next state, or -1 for none, int32 [states, classes].
        columns: `columns[i][letter]` is the column of `tables[i]` for a letter.
        most: Maximum number of tuples.
        all_alive: True to drop tuples in which an automaton has no state: the move to such a tuple is then -1.

    Returns:
        Pair (tuples, moves), or None if there are more than `most` tuples. `tuples`, int32 [n, automata], has a state
        for each automaton, or -1 for none, in the order of discovery. `moves`, int32 [n, letters], has indices of the
        next tuples.
    """
    widths = np.array([table.shape[1] for table in tables], np.int64)
    begins = np.cumsum([0, *(table.size for table in tables[:-1])])
    flat = np.concatenate([table.ravel() for table in tables])
    many, tuples, moves = _explore(flat, begins, widths, np.array(columns, np.int64), most, all_alive)
    return None if many < 0 else (tuples[:many], moves[:many])


@called_with(int32[::1], int64[::1], int64[::1], int64[:, ::1], int64, boolean)
@njit(**OPTIONS)
def _explore(flat, begins, widths, columns, most, all_alive):  # type: ignore[no-untyped-def]
    automata, letters = columns.shape
    tuples = np.zeros((64, automata), np.int32)
    moves = np.empty((64, letters), np.int32)
    buckets = laid_buckets(tuples, np.int64(1))
    reached = np.zeros(automata, np.int32)
    many = np.int64(1)
    done = np.int64(0)
    while done < many:
        for letter in range(letters):
            dead = False
            for i in range(automata):
                state = np.int64(tuples[done, i])
                reached[i] = flat[begins[i] + state * widths[i] + columns[i, letter]] if state >= 0 else np.int32(-1)
                dead |= reached[i] < 0
            if all_alive and dead:
                moves[done, letter] = -1
                continue
            found = find_row(tuples, buckets, reached)
            if found < 0:
                if many == most:
                    return np.int64(-1), tuples, moves
                if many == tuples.shape[0]:
                    tuples = np.concatenate((tuples, np.zeros_like(tuples)))
                    moves = np.concatenate((moves, np.empty_like(moves)))
                    buckets = laid_buckets(tuples, many)
                    found = find_row(tuples, buckets, reached)
                tuples[many] = reached
                buckets[-1 - found] = many
                found = many
                many += 1
            moves[done, letter] = found
        done += 1
    return many, tuples, moves
