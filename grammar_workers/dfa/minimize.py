"""Minimal deterministic automata over small alphabets, as dense tables: trim, then merge what has the same future."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS

DEAD = -1


def minimal(moves: NDArray[np.int32], accepting: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The minimal automaton of the same language, its states numbered breadth first from state 0.

    `moves` int32 [states, letters] of the next state or -1, `accepting` int32 [states] of labels (0: not accepting).
    Without unreachable states, and without dead ones but for state 0. Equal languages give equal tables.
    """
    # Letters that every state treats alike are one letter; the order of first occurrence keeps the numbering.
    if moves.shape[1] == 0:
        return np.empty((1, 0), np.int32), accepting[:1]
    columns = np.ascontiguousarray(moves.T)
    content, width = columns.tobytes(), 4 * len(moves)
    first: dict[bytes, int] = {}
    letters = [first.setdefault(content[place : place + width], len(first)) for place in range(0, len(content), width)]
    if len(first) == len(letters):
        return _minimal(np.ascontiguousarray(moves), accepting)
    distinct = columns[[letters.index(number) for number in range(len(first))]]
    merged, labels = _minimal(np.ascontiguousarray(distinct.T), accepting)
    return merged[:, letters], labels


@njit(**OPTIONS)
def _minimal(moves, accepting):  # type: ignore[no-untyped-def]
    order, number = _useful(moves, accepting)
    trimmed = _renumbered(moves, order, number)
    labels = accepting[order]
    block = _coarsest_partition(trimmed, labels)
    # Blocks get their numbers in order of their first state, so the numbering stays breadth first.
    many = len(block)
    rank = np.full(many + 1, DEAD, np.int32)
    representative = np.empty(many, np.int32)
    found = 0
    for state in range(many):
        if rank[block[state]] < 0:
            rank[block[state]] = found
            representative[found] = state
            found += 1
    representative = representative[:found]
    return _renumbered(trimmed, representative, rank[block]), labels[representative]


@njit(**OPTIONS)
def _renumbered(moves, states, number):  # type: ignore[no-untyped-def]
    """The rows of `states` with each target replaced by its number; -1 stays."""
    many, letters = len(states), moves.shape[1]
    result = np.empty((many, letters), np.int32)
    for row in range(many):
        for letter in range(letters):
            target = moves[states[row], letter]
            result[row, letter] = number[target] if target >= 0 else DEAD
    return result


@njit(**OPTIONS)
def _useful(moves, accepting):  # type: ignore[no-untyped-def]
    """States that are reachable and alive (and state 0), breadth first, and the number of each state among them."""
    many, letters = moves.shape
    # The sources of each state, as one array cut at `begin`.
    begin = np.zeros(many + 2, np.int64)
    for state in range(many):
        for letter in range(letters):
            target = moves[state, letter]
            if target >= 0:
                begin[target + 2] += 1
    for state in range(many):
        begin[state + 2] += begin[state + 1]
    sources = np.empty(begin[many + 1], np.int32)
    for state in range(many):
        for letter in range(letters):
            target = moves[state, letter]
            if target >= 0:
                sources[begin[target + 1]] = state
                begin[target + 1] += 1
    alive = accepting != 0
    queue = np.empty(many, np.int32)
    tail = 0
    for state in range(many):
        if alive[state]:
            queue[tail] = state
            tail += 1
    head = 0
    while head < tail:
        state = queue[head]
        head += 1
        for i in range(begin[state], begin[state + 1]):
            source = sources[i]
            if not alive[source]:
                alive[source] = True
                queue[tail] = source
                tail += 1
    number = np.full(many, DEAD, np.int32)
    order = np.empty(many, np.int32)
    order[0] = 0
    number[0] = 0
    found = 1
    head = 0
    while head < found:
        state = order[head]
        head += 1
        for letter in range(letters):
            target = moves[state, letter]
            if target >= 0 and alive[target] and number[target] < 0:
                number[target] = found
                order[found] = target
                found += 1
    return order[:found], number


@njit(**OPTIONS)
def _coarsest_partition(moves, labels):  # type: ignore[no-untyped-def]
    """The block of each state in the coarsest partition that labels and moves respect.

    Hopcroft's algorithm (1971): "process the smaller half". Blocks are runs of `elements`; a splitter is a whole block
    for all letters. Missing moves lead to one more state.
    """
    many, letters = moves.shape
    total = many + 1
    begin = np.zeros((letters, total + 1), np.int64)
    for letter in range(letters):
        for state in range(total):
            target = moves[state, letter] if state < many else DEAD
            begin[letter, (target if target >= 0 else many) + 1] += 1
        for state in range(total):
            begin[letter, state + 1] += begin[letter, state]
    sources = np.empty((letters, total), np.int32)
    place = np.empty(total, np.int64)
    for letter in range(letters):
        place[:] = begin[letter, :total]
        for state in range(total):
            target = moves[state, letter] if state < many else DEAD
            if target < 0:
                target = many
            sources[letter, place[target]] = state
            place[target] += 1

    keys = np.full(total, -1, np.int64)
    keys[:many] = labels
    elements = np.argsort(keys, kind="mergesort")
    location = np.empty(total, np.int64)
    block = np.empty(total, np.int32)
    first = np.empty(total + 1, np.int64)
    past = np.empty(total + 1, np.int64)
    marked = np.zeros(total + 1, np.int64)
    blocks = 0
    for i in range(total):
        if i == 0 or keys[elements[i]] != keys[elements[i - 1]]:
            first[blocks] = i
            blocks += 1
        past[blocks - 1] = i + 1
        block[elements[i]] = blocks - 1
        location[elements[i]] = i

    pending = np.empty(total + 1, np.int32)
    queued = np.zeros(total + 1, np.bool_)
    waiting = blocks
    for i in range(blocks):
        pending[i] = i
        queued[i] = True
    touched = np.empty(total + 1, np.int32)
    splitter = np.empty(total, np.int64)
    while waiting > 0:
        waiting -= 1
        chosen = pending[waiting]
        queued[chosen] = False
        size = past[chosen] - first[chosen]
        # A copy: the splitter may itself be split on the way.
        splitter[:size] = elements[first[chosen] : past[chosen]]
        for letter in range(letters):
            many_touched = 0
            for i in range(size):
                target = splitter[i]
                for j in range(begin[letter, target], begin[letter, target + 1]):
                    state = sources[letter, j]
                    old = block[state]
                    # Marked states gather at the front of their block.
                    front = first[old] + marked[old]
                    if marked[old] == 0:
                        touched[many_touched] = old
                        many_touched += 1
                    other = elements[front]
                    here = location[state]
                    elements[front] = state
                    elements[here] = other
                    location[state] = front
                    location[other] = here
                    marked[old] += 1
            for i in range(many_touched):
                old = touched[i]
                count = marked[old]
                marked[old] = 0
                length = past[old] - first[old]
                if count == length:
                    continue
                # The smaller part becomes the new block.
                new = blocks
                blocks += 1
                if 2 * count <= length:
                    first[new] = first[old]
                    past[new] = first[old] + count
                    first[old] = past[new]
                else:
                    past[new] = past[old]
                    first[new] = first[old] + count
                    past[old] = first[new]
                for j in range(first[new], past[new]):
                    block[elements[j]] = new
                # When the old block waits, both parts must; else the smaller one is enough.
                pending[waiting] = new
                waiting += 1
                queued[new] = True
    return block[:many]
