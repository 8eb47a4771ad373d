"""Lays a sparse automaton over characters out as states over bytes, most of which read one literal byte."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit, uint8

from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.numba_options import INNER, OPTIONS, called_with

SPELLING_BYTES = 8
"""More than the bytes of a character in UTF-8, and of its escape in JSON."""


@njit(**OPTIONS, **INNER)
def _grown(array, size):  # type: ignore[no-untyped-def]
    return np.append(array, np.full(size, DEAD, np.int64))


@njit(**OPTIONS, **INNER)
def _byte_edges(  # type: ignore[no-untyped-def]
    start, first, read, targets, nearest, furthest, begins, places, spellings, shared
):
    """The edges over bytes as (source, byte, end), and of each node the state that it stands for (-1: it is inside of a
    character), the class of characters that it calls a rule for (-1: none), and the distances to an end."""
    states = len(first) - 1
    node_of = np.full(states, DEAD, np.int64)
    sources, bytes_read, ends = np.empty(1024, np.int64), np.empty(1024, np.int64), np.empty(1024, np.int64)
    state_of, called = np.full(states, DEAD, np.int64), np.full(states, DEAD, np.int64)
    near, far = np.full(states, DEAD, np.int64), np.full(states, DEAD, np.int64)
    pending = np.empty(states, np.int64)
    pending[0] = start
    node_of[start] = 0
    state_of[0], near[0], far[0] = start, nearest[start], furthest[start]
    nodes = waiting = 1
    edges = 0
    path = np.zeros(SPELLING_BYTES + 1, np.int64)
    while waiting:
        waiting -= 1
        state = pending[waiting]
        alive = count = 0
        for edge in range(first[state], first[state + 1]):
            if nearest[targets[edge]] >= 0:
                alive += 1
                count += begins[read[edge] + 1] - begins[read[edge]]
        # Spellings are numbered in the order of their bytes, so those that begin alike are neighbors.
        found = np.empty(count, np.int64)
        count = 0
        for edge in range(first[state], first[state + 1]):
            if nearest[targets[edge]] >= 0:
                if alive == 1 and state != start and shared[read[edge]]:
                    called[node_of[state]] = read[edge]
                    found[count] = targets[edge]
                    count += 1
                    break
                for place in range(begins[read[edge]], begins[read[edge] + 1]):
                    found[count] = np.int64(places[place]) << 32 | targets[edge]
                    count += 1
        is_call = called[node_of[state]] >= 0
        found = found[:count]
        found.sort()
        path[0] = node_of[state]
        before = np.int64(-1)
        for one in found:
            spelling, target = one >> 32, one & 0xFFFFFFFF
            length = np.int64(1) if is_call else np.int64(spellings[spelling, 0])
            depth = np.int64(0)
            if before >= 0:
                while spellings[before, 1 + depth] == spellings[spelling, 1 + depth]:
                    depth += 1
                    near[path[depth]] = min(near[path[depth]], nearest[target])
                    far[path[depth]] = max(far[path[depth]], furthest[target])
            before = spelling
            if edges + length > len(sources):
                more = len(sources)
                sources, bytes_read, ends = _grown(sources, more), _grown(bytes_read, more), _grown(ends, more)
            if nodes + length > len(state_of):
                more = len(state_of) + SPELLING_BYTES
                state_of, called = _grown(state_of, more), _grown(called, more)
                near, far = _grown(near, more), _grown(far, more)
            while depth < length:
                end = node_of[target] if depth + 1 == length else np.int64(-1)
                if end < 0:
                    end = np.int64(nodes)
                    nodes += 1
                    near[end], far[end] = nearest[target], furthest[target]
                    if depth + 1 == length:
                        node_of[target] = end
                        state_of[end] = target
                        pending[waiting] = target
                        waiting += 1
                sources[edges], bytes_read[edges], ends[edges] = path[depth], spellings[spelling, 1 + depth], end
                edges += 1
                depth += 1
                path[depth] = end
    return sources[:edges], bytes_read[:edges], ends[:edges], state_of[:nodes], called[:nodes], near, far


@called_with(
    int64, int64[::1], int32[::1], int32[::1], int64[::1], int64[::1], int64[::1], int32[::1], uint8[:, ::1], uint8[::1]
)
@njit(**OPTIONS)
def lay_out(  # type: ignore[no-untyped-def]
    start, first, read, targets, nearest, furthest, begins, places, spellings, shared
):
    """Lay out the states that `start` leads to, itself first.

    A state with one edge reads a literal byte, which leads to the state behind it. Where that state has its place
    behind another one, a state in between jumps to it. A state with several edges has a dense row, and so has `start`.
    A state whose only edge reads a `shared` class calls a rule for it, since rows cannot be shared.

    Args:
        start: State that matching begins in.
        first: Where the edges of each state begin, int64 [states + 1].
        read: Class of characters that each edge reads, int32 [edges].
        targets: State that each edge leads to, int32 [edges].
        nearest: Fewest characters to an end, int64 [states]; states with -1 must not be entered.
        furthest: Most characters to an end, int64 [states].
        begins: Where the spellings of each class begin in `places`, int64 [classes + 1].
        places: Numbers of spellings, int32.
        spellings: Length and bytes of each, sorted by the bytes, uint8 [spellings, 1 + SPELLING_BYTES].
        shared: 1 for classes that are read by a rule where that saves a row, uint8 [classes].

    Returns:
        A table with a line for each state of the result, int64 [n, 7]: its literal byte, its row, the state that it
        jumps to, the class that it calls a rule for (behind which it jumps), the state of the arguments that it stands
        for, each -1 for none; the fewest and the most characters to an end. And the rows, int32 [rows, 256].
    """
    sources, bytes_read, ends, state_of, called, near, far = _byte_edges(
        start, first, read, targets, nearest, furthest, begins, places, spellings, shared
    )
    nodes = len(state_of)
    degrees = np.zeros(nodes, np.int64)
    only = np.full(nodes, DEAD, np.int64)
    for edge in range(len(sources)):
        degrees[sources[edge]] += 1
        only[sources[edge]] = edge
    degrees[0] = 2
    before = np.full(nodes, DEAD, np.int64)
    rows = 0
    for node in range(nodes):
        if degrees[node] > 1:
            rows += 1
        elif degrees[node] == 1 and called[node] < 0 and before[ends[only[node]]] < 0:
            before[ends[only[node]]] = node
    lines = np.full((2 * nodes, 7), DEAD, np.int64)
    place_of = np.empty(nodes, np.int64)
    table = np.full((rows, 256), DEAD, np.int32)
    many = rows = 0
    for head in range(nodes):
        if before[head] >= 0:
            continue
        reached = np.int64(head)
        while True:
            place_of[reached] = many
            lines[many, 3], lines[many, 4] = called[reached], state_of[reached]
            lines[many, 5], lines[many, 6] = near[reached], far[reached]
            many += 1
            if degrees[reached] > 1:
                lines[many - 1, 1] = rows
                rows += 1
                break
            if degrees[reached] == 0:
                break
            end = ends[only[reached]]
            if called[reached] >= 0:
                lines[many - 1, 2] = end
                break
            lines[many - 1, 0] = bytes_read[only[reached]]
            if before[end] != reached:
                lines[many, 2] = end
                many += 1
                break
            reached = end
    for place in range(many):
        if lines[place, 2] >= 0:
            lines[place, 2] = place_of[lines[place, 2]]
    for edge in range(len(sources)):
        row = lines[place_of[sources[edge]], 1]
        if row >= 0:
            table[row, bytes_read[edge]] = place_of[ends[edge]]
    return lines[:many].copy(), table
