"""The suffix automaton of a sequence: the smallest DFA that reads exactly the sequence's factors (contiguous parts)."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit

from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.numba_options import INNER, OPTIONS, called_with


@njit(**OPTIONS, **INNER)
def _slot(buckets, sources, read, state, symbol):  # type: ignore[no-untyped-def]
    """Return the bucket that holds the edge of `state` over `symbol`, or the empty bucket for it (linear probing)."""
    last = np.uint64(len(buckets) - 1)
    mixed = (np.uint64(state) << np.uint64(21) ^ np.uint64(symbol)) * np.uint64(0x9E3779B97F4A7C15)
    slot = (mixed ^ (mixed >> np.uint64(29))) & last
    while buckets[slot] >= 0 and (sources[buckets[slot]] != state or read[buckets[slot]] != symbol):
        slot = (slot + np.uint64(1)) & last
    return np.int64(slot)


@called_with(int32[::1])
@njit(**OPTIONS)
def suffix_automaton(symbols):  # type: ignore[no-untyped-def]
    """Return the suffix automaton of a sequence: the smallest DFA that reads exactly its contiguous parts (factors).

    Args:
        symbols: Sequence of numbers from 0 on, int32 [n].

    Returns:
        Four arrays. Sources, symbols and targets of the edges, in no particular order, int32 [edges] each. Then for
        each state the length of the longest factor that leads to it, int64 [states]. Every edge leads to a state with a
        greater length. The start state is 0; all states accept.

    Reference: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text".
    """
    size = 64
    while size < 6 * len(symbols):
        size *= 2
    buckets = np.full(size, DEAD, np.int32)
    sources = np.empty(3 * len(symbols) + 8, np.int32)
    read, targets, following = np.empty_like(sources), np.empty_like(sources), np.empty_like(sources)
    lengths = np.zeros(2 * len(symbols) + 2, np.int64)
    links, newest = np.full(len(lengths), DEAD, np.int32), np.full(len(lengths), DEAD, np.int32)
    edges, states, last = 0, 1, 0
    for symbol in symbols:
        current = states
        states += 1
        lengths[current] = lengths[last] + 1
        links[current] = 0
        state = np.int64(last)
        slot = 0
        while state >= 0:
            slot = _slot(buckets, sources, read, state, symbol)
            if buckets[slot] >= 0:
                break
            buckets[slot] = edges
            sources[edges], read[edges], targets[edges], following[edges] = state, symbol, current, newest[state]
            newest[state] = edges
            edges += 1
            state = np.int64(links[state])
        if state >= 0:
            found = np.int64(targets[buckets[slot]])
            if lengths[found] != lengths[state] + 1:
                # Longer factors of that state end at fewer positions: the shorter factors get a state of their own.
                clone = states
                states += 1
                lengths[clone] = lengths[state] + 1
                links[clone] = links[found]
                edge = np.int64(newest[found])
                while edge >= 0:
                    buckets[_slot(buckets, sources, read, clone, read[edge])] = edges
                    sources[edges], read[edges], targets[edges] = clone, read[edge], targets[edge]
                    following[edges] = newest[clone]
                    newest[clone] = edges
                    edges += 1
                    edge = np.int64(following[edge])
                links[found] = clone
                while state >= 0 and targets[buckets[slot]] == found:
                    targets[buckets[slot]] = clone
                    state = np.int64(links[state])
                    if state >= 0:
                        slot = _slot(buckets, sources, read, state, symbol)
                found = np.int64(clone)
            links[current] = found
        last = current
    return sources[:edges], read[:edges], targets[:edges], lengths[:states]


@called_with(int64[::1], int64[::1], int32[::1], int32[::1])
@njit(**OPTIONS)
def distances(order, first, targets, accepting):  # type: ignore[no-untyped-def]
    """Return the lengths of the shortest and the longest path from each state of a graph to an accepting state.

    Args:
        order: All states of the acyclic graph, each after its successors, int64 [states].
        first: The edges of state i have the indices from `first[i]` to `first[i + 1] - 1`, int64 [states + 1].
        targets: Target state of each edge, int32 [edges].
        accepting: Nonzero for accepting states, int32 [states].

    Returns:
        Shortest and longest lengths in edges, int64 [states] each; -1 if there is no path.
    """
    nearest = np.full(len(order), DEAD, np.int64)
    furthest = np.full(len(order), DEAD, np.int64)
    for state in order:
        if accepting[state]:
            nearest[state] = furthest[state] = 0
        for target in targets[first[state] : first[state + 1]]:
            if furthest[target] >= 0:
                furthest[state] = max(furthest[state], furthest[target] + 1)
                if nearest[state] < 0 or nearest[target] + 1 < nearest[state]:
                    nearest[state] = nearest[target] + 1
    return nearest, furthest
