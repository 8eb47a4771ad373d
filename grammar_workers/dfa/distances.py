"""How far the states of an automaton are from the end of a text."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit

from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.numba_options import OPTIONS, called_with

ENDLESS = 2**31 - 1
"""The distance to the end of texts that may be as long as they like."""


@called_with(int64[::1], int32[::1], int32[::1])
@njit(**OPTIONS)
def distances(first, targets, accepting):  # type: ignore[no-untyped-def]
    """Return per state the fewest and the most symbols to an accepting state, int64 [states] each.

    Both are -1 for a state without such a way. The most are `ENDLESS` where a cycle lies on the way.

    Args:
        first: The edges of a state are [first[i], first[i + 1]), int64 [states + 1].
        targets: Where each edge leads or -1, int32 [edges].
        accepting: 0 where no text ends, int32 [states].
    """
    many = len(accepting)
    begins = np.zeros(many + 2, np.int64)
    for target in targets:
        if target >= 0:
            begins[target + 2] += 1
    begins = np.cumsum(begins)
    sources = np.empty(len(targets), np.int32)
    for state in range(many):
        for target in targets[first[state] : first[state + 1]]:
            if target >= 0:
                sources[begins[target + 1]] = state
                begins[target + 1] += 1
    nearest = np.where(accepting > 0, np.int64(0), np.int64(DEAD))
    furthest = nearest.copy()
    queue = np.empty(many, np.int64)
    found = 0
    for state in range(many):
        if accepting[state]:
            queue[found] = state
            found += 1
    # The edges that lead on from a state, of which the longest way is not known yet.
    waiting = np.zeros(many, np.int64)
    done = 0
    while done < found:
        state = queue[done]
        done += 1
        for source in sources[begins[state] : begins[state + 1]]:
            waiting[source] += 1
            if nearest[source] < 0:
                nearest[source] = nearest[state] + 1
                queue[found] = source
                found += 1
    done, found = 0, 0
    for state in range(many):
        if accepting[state] and not waiting[state]:
            queue[found] = state
            found += 1
    while done < found:
        state = queue[done]
        done += 1
        for source in sources[begins[state] : begins[state + 1]]:
            furthest[source] = max(furthest[source], furthest[state] + 1)
            waiting[source] -= 1
            if not waiting[source]:
                queue[found] = source
                found += 1
    return nearest, np.where(waiting > 0, np.int64(ENDLESS), furthest)
