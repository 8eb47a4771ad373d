"""Minimization of DFAs that are given as dense tables: remove useless states, then merge equivalent states."""

from __future__ import annotations

import numpy as np
from numba import int32, njit
from numpy.typing import NDArray

from grammar_workers.dfa.row_hash import DEAD, distinct_rows
from grammar_workers.numba_options import INNER, OPTIONS, called_with


def minimal(moves: NDArray[np.int32], accepting: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the minimal automaton with the language and labels of a given automaton.

    A letter is a class of characters. A label is a number for a kind of accepted text. Automata with equal languages
    and labels give equal arrays.

    Args:
        moves: Next state, or -1 for none, int32 [states, letters]. The start state is 0.
        accepting: Label of each state, int32 [states]; 0 if it does not accept.

    Returns:
        The arrays `moves` and `accepting` of the minimal automaton. Its states are numbered breadth first from state 0.
        All states are reachable, and all except possibly state 0 lead to an accepting state.
    """
    # Letters that every state treats alike are one letter; the order of first occurrence keeps the numbering.
    letters, firsts = distinct_rows(np.ascontiguousarray(moves.T))
    merged, labels = _minimal(np.ascontiguousarray(moves[:, firsts]), accepting)
    return merged[:, letters], labels


@called_with(int32[:, ::1], int32[::1])
@njit(**OPTIONS)
def _minimal(moves, accepting):  # type: ignore[no-untyped-def]
    order, number = _useful(moves, accepting)
    trimmed = _renumbered(moves, order, number)
    labels = accepting[order]
    # Blocks get their numbers in order of their first state, so the numbering stays breadth first.
    block, representative = distinct_rows(_coarsest_partition(trimmed, labels).reshape(-1, 1))
    return _renumbered(trimmed, representative, block), labels[representative]


@njit(**OPTIONS, **INNER)
def _renumbered(moves, states, number):  # type: ignore[no-untyped-def]
    """Return the rows of `states` with each target replaced by its number; -1 stays."""
    many, letters = len(states), moves.shape[1]
    result = np.empty((many, letters), np.int32)
    for row in range(many):
        for letter in range(letters):
            target = moves[states[row], letter]
            result[row, letter] = number[target] if target >= 0 else DEAD
    return result


@njit(**OPTIONS, **INNER)
def _sources(moves):  # type: ignore[no-untyped-def]
    """Return for each state the states with a move to it: `sources[begin[i] : begin[i + 1]]` for state i."""
    many, letters = moves.shape
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
    return begin, sources


@njit(**OPTIONS, **INNER)
def _useful(moves, accepting):  # type: ignore[no-untyped-def]
    """Return state 0 and all states that are reachable and alive, breadth first, and the number of each state."""
    many, letters = moves.shape
    begin, sources = _sources(moves)
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
    order = np.empty(many, np.int64)
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


@njit(**OPTIONS, **INNER)
def _coarsest_partition(moves, labels):  # type: ignore[no-untyped-def]
    """Return the block of each state in the coarsest partition that labels and moves respect.

    This is Moore's refinement (1956), restricted in each round to the states that have a move into a new block. The
    largest part of a block keeps the block's number ("process the smaller half", Hopcroft 1971), so long chains are
    cheap.
    """
    many = len(moves)
    begin, sources = _sources(moves)
    block, firsts = distinct_rows(labels.reshape(-1, 1))
    blocks = len(firsts)
    size = np.zeros(many, np.int64)
    size[:blocks] = np.bincount(block)
    largest = np.full(many, -1, np.int64)
    touched = np.arange(many)
    is_touched = np.zeros(many, np.bool_)
    while len(touched) > 0:
        rows = np.concatenate((block[touched].reshape(-1, 1), _renumbered(moves, touched, block)), axis=1)
        parts, firsts = distinct_rows(rows)
        counts = np.bincount(parts)
        numbers = rows[firsts, 0]
        for part in range(len(firsts)):
            size[numbers[part]] -= counts[part]
        # Untouched states of a block keep its number. If all of its states were touched, the largest part keeps it.
        for part in range(len(firsts)):
            number = numbers[part]
            if size[number] == 0 and (largest[number] < 0 or counts[part] > counts[largest[number]]):
                largest[number] = part
        for part in range(len(firsts)):
            number = numbers[part]
            if largest[number] != part:
                numbers[part] = blocks
                blocks += 1
            size[numbers[part]] = counts[part]
        largest[rows[firsts, 0]] = -1
        many_touched = 0
        following = np.empty(many, np.int64)
        for i in range(len(touched)):
            state = touched[i]
            if numbers[parts[i]] == block[state]:
                continue
            block[state] = numbers[parts[i]]
            for source in sources[begin[state] : begin[state + 1]]:
                if not is_touched[source]:
                    is_touched[source] = True
                    following[many_touched] = source
                    many_touched += 1
        touched = following[:many_touched]
        is_touched[touched] = False
    return block
