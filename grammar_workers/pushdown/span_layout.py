"""Conversion of a sparse automaton over characters to states that read bytes. Most of these states read one byte."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit, uint8

from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.numba_options import INNER, OPTIONS, called_with

# An upper bound of the length of an encoded character, in UTF-8 or with its escape in JSON, in bytes.
SPELLING_BYTES = 8


@njit(**OPTIONS, **INNER)
def _grown(array, size):  # type: ignore[no-untyped-def]
    return np.append(array, np.full(size, DEAD, np.int64))


@njit(**OPTIONS, **INNER)
def _byte_edges(  # type: ignore[no-untyped-def]
    start, first, read, targets, nearest, furthest, begins, places, spellings, shared
):
    """Return the edges over bytes as (source, byte, end), and four properties of each node.

    The properties of a node are the state that it stands for (-1: it is inside a character), the class of characters
    that it calls a rule for (-1: none), and the minimum and maximum number of characters to an end.
    """
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


@njit(**OPTIONS, **INNER)
def _dense_rows(many, lines, place_of, sources, bytes_read, ends):  # type: ignore[no-untyped-def]
    table = np.full((many, 256), DEAD, np.int32)
    for edge in range(len(sources)):
        row = lines[place_of[sources[edge]], 1]
        if row >= 0:
            table[row, bytes_read[edge]] = place_of[ends[edge]]
    return table


@njit(**OPTIONS, **INNER)
def _joined(sources, bytes_read, ends, state_of, called, near, far):  # type: ignore[no-untyped-def]
    """Return what `lay_out` returns, for edges over bytes. Chains of single edges get consecutive numbers."""
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
    return lines[:many].copy(), _dense_rows(rows, lines, place_of, sources, bytes_read, ends)


@called_with(
    int64, int64[::1], int32[::1], int32[::1], int64[::1], int64[::1], int64[::1], int32[::1], uint8[:, ::1], uint8[::1]
)
@njit(**OPTIONS)
def lay_out(  # type: ignore[no-untyped-def]
    start, first, read, targets, nearest, furthest, begins, places, spellings, shared
):
    """Convert a sparse automaton over characters to numbered states that read bytes.

    Only states that are reachable from `start` are converted. `start` has number 0. A new state is of one of these
    kinds:

    - It reads one byte, which leads to the state with the next number. This next state may be a mere jump.
    - It has a dense row (the next state for each byte). `start` and all states with several edges are of this kind.
    - It calls a rule (part of the automaton that is called), which reads one character of a class in `shared`.

    Args:
        start: State of the sparse automaton in which matching begins.
        first: Index of the first edge of each state, int64 [states + 1].
        read: Class of characters that each edge reads, int32 [edges].
        targets: State that each edge leads to, int32 [edges].
        nearest: Minimum number of characters from each state to an end, int64 [states]. -1: never enter the state.
        furthest: Maximum number of characters from each state to an end, int64 [states].
        begins: Index in `places` where the encodings of each class begin, int64 [classes + 1].
        places: Encodings of all classes, as indices into `spellings`, int32.
        spellings: Length and bytes of each encoded character, sorted by the bytes, uint8 [encodings, 1 +
            SPELLING_BYTES].
        shared: 1 if a rule may read the class, else 0, uint8 [classes].

    Returns:
        A table with one line per new state, int64 [n, 7], and the dense rows, int32 [rows, 256]. The columns of the
        table are: the byte that leads to the next number; the number of the dense row; the state to jump to; the class
        for which a rule is called before the jump; the state of the sparse automaton to which the new state
        corresponds; the minimum and the maximum number of characters to an end. -1 in the first five columns means
        none.
    """
    return _joined(*_byte_edges(start, first, read, targets, nearest, furthest, begins, places, spellings, shared))
