"""The compiled walk over the configurations ahead, those between ASCII characters, and their mask rows.

`arrays` are those of a recognizer (`arrays.Arrays`), `tables` and `stack` are as in `step`. A *place* is a
configuration that the walk has found. A kernel that finds a table full is called again once there is room: places are
found once, and the walk moves on to the next place last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int32, int64, njit, types, uint32
from numpy.typing import NDArray

from grammar_workers.matching.kernels.mask import CLASSES_FULL, TREE_IF_SHORT, make_row
from grammar_workers.matching.kernels.mask_classes import CLASS_AHEAD, CLASS_BOUNDS, find_class
from grammar_workers.matching.kernels.step import (
    FRAME_AHEAD,
    FRAME_PARENT,
    FRAME_SAVED,
    FRAME_SITE,
    FRAMES_FULL,
    arrive,
    leave,
    may_end,
)
from grammar_workers.matching.kernels.transitions import place_of
from grammar_workers.matching.kernels.trie_walks import allow_all, take
from grammar_workers.numba_options import BORROWS, INNER, called_with, readonly
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.byte_classes import site_ends_of
from grammar_workers.pushdown.instructions import (
    ASSIGN,
    DEAD,
    INCREMENT,
    INSTRUCTION_ACTION,
    INSTRUCTION_VALUE,
    SILENT_MOVES,
    STATE_INSTRUCTION,
    STATE_LITERAL,
    STATE_ROW,
)
from grammar_workers.vocabulary.vocabulary import Vocabulary

COUNT_FOUND, COUNT_RETURNED, COUNT_FRESH, COUNT_LATER, COUNT_BUDGET, COUNT_ROWS, COUNT_WALK, COUNTS = range(8)
"""Numbers about a walk: how many places there are; the first one whose caller has not been looked for; the next one if
its state is new, and the next one whatever its state; how many may still be looked at; how many rows the last call has
made; and the number of the walk itself, from 1."""
MORE, OVER = -10, -11
"""Results of `look_ahead` beside places and full tables: another call goes on, or nothing is left to look at."""
_BATCH = 64
"""Places that one call looks at: half a millisecond, in which nobody else can walk the automaton."""
_PLACES_FOUND = 4
"""Places for which there is room, for each that is looked at. On schemas of MaskBench, at most 3.4 are found."""
_MOST_PLACES = 1 << 18
"""Without room, a place is not looked at."""


class Walk(NamedTuple):
    """The places found so far, where the walk has been, what the last call has made, and constants."""

    places: NDArray[np.int64]
    """[capacity, 3]: state, counter and frame"""
    seen: NDArray[np.int32]
    """[power of two]: the hash table of the places, see `transitions.place_of`"""
    counters: NDArray[np.int64]
    """[COUNTS]"""
    first: NDArray[np.int32]
    """[states]: the place in this state that has been looked at first, or -1"""
    rows: NDArray[np.uint32]
    """[batch, words]: the rows that the last call has made"""
    classes: NDArray[np.int64]
    """[batch]: their classes"""
    eos_row: NDArray[np.uint32]
    """[words]"""
    site_ends: NDArray[np.int32]
    """See `site_ends_of`."""
    assigned: NDArray[np.int32]
    """The values that instructions assign to the counter, ascending."""


WALK = types.NamedTuple(
    (
        *(int64[:, ::1], int32[::1], int64[::1], int32[::1], uint32[:, ::1]),
        *(int64[::1], readonly(uint32[::1]), int32[::1], int32[::1]),
    ),
    Walk,
)
"""The numba type of a `Walk`."""


def begin_walk(pushdown: PushdownAutomaton, vocabulary: Vocabulary, max_places: int, number: int) -> Walk:
    """A walk that may look at `max_places` and has found none yet. Walks of one automaton have ascending numbers."""
    room = min(_PLACES_FOUND * (max_places + _BATCH), _MOST_PLACES)
    counters = np.zeros(COUNTS, np.int64)
    counters[COUNT_BUDGET] = max_places
    counters[COUNT_WALK] = number
    instructions = pushdown.instructions
    return Walk(
        np.empty((room, 3), np.int64),
        np.full(1 << (2 * room).bit_length(), -1, np.int32),
        counters,
        np.full(len(pushdown.states), -1, np.int32),
        np.empty((_BATCH, vocabulary.mask_words), np.uint32),
        np.empty(_BATCH, np.int64),
        vocabulary.eos_mask,
        site_ends_of(pushdown.tables),
        # Only a property name assigns the counter: its position among the names.
        np.unique(instructions[instructions[:, INSTRUCTION_ACTION] == ASSIGN, INSTRUCTION_VALUE]),
    )


@called_with(WALK, int64, int64, int64)
@njit(**BORROWS)
def add_place(walk, state, counter, frame):  # type: ignore[no-untyped-def]
    """Put a configuration at the end of the places, unless it is one of them or there is no room for it."""
    found = walk.counters[COUNT_FOUND]
    if place_of(walk.places, walk.seen, found, state, counter, frame) == found:
        walk.counters[COUNT_FOUND] = found + 1


@njit(**BORROWS, **INNER)
def _add_arrival(tables, stack, walk, state, counter, frame):  # type: ignore[no-untyped-def]
    """Add where entering a state leads to. Returns the state there, DEAD or FRAMES_FULL."""
    state, counter, frame = arrive(tables, stack, state, counter, frame)
    if state >= 0:
        add_place(walk, state, counter, frame)
    return state


@njit(**BORROWS, **INNER)
def _add_returns(tables, stack, walk):  # type: ignore[no-untyped-def]
    """Add where the callers go on that wait for the places found last, and theirs: one configuration for each label.

    Returns 0 or FRAMES_FULL.
    """
    counters, frames = walk.counters, stack.frames
    while counters[COUNT_RETURNED] < counters[COUNT_FOUND]:
        top = walk.places[counters[COUNT_RETURNED], 2]
        frame = top
        while frame > 0 and frames[frame, FRAME_AHEAD] < counters[COUNT_WALK]:
            site, saved, parent = frames[frame, FRAME_SITE], frames[frame, FRAME_SAVED], frames[frame, FRAME_PARENT]
            for label in range(site, walk.site_ends[site]):
                target = np.int64(tables.returns[label])
                if target >= 0 and _add_arrival(tables, stack, walk, target, saved, parent) == FRAMES_FULL:
                    return np.int64(FRAMES_FULL)
            frame = parent
        # Only now: a walk that finds the table of frames full must come by all of them again.
        while top != frame:
            frames[top, FRAME_AHEAD] = counters[COUNT_WALK]
            top = frames[top, FRAME_PARENT]
        counters[COUNT_RETURNED] += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _target(tables, state, byte):  # type: ignore[no-untyped-def]
    """The state that one reads a byte into, or DEAD; not what its callers read."""
    if tables.states[state, STATE_LITERAL] == byte:
        return np.int64(state + 1)
    row = tables.states[state, STATE_ROW]
    return np.int64(tables.table[row, byte]) if row >= 0 else np.int64(DEAD)


@njit(**BORROWS, **INNER)
def _add_following(arrays, walk, state, counter, frame):  # type: ignore[no-untyped-def]
    """Add where bytes below 128 lead to. Returns how many such bytes were found, or FRAMES_FULL."""
    tables, stack, taken = arrays.tables, arrays.stack, arrays.path[arrays.path.shape[0] - 1]
    taken[:] = 0
    many = np.int64(0)
    for _ in range(SILENT_MOVES):
        before = np.int64(DEAD)
        for byte in range(128):
            target = _target(tables, state, byte)
            if target >= 0 and take(taken, byte) and target != before:
                before = target
                reached = _add_arrival(tables, stack, walk, target, counter, frame)
                if reached == FRAMES_FULL:
                    return reached
                many += reached >= 0
        # What is left is read by the caller.
        state, counter, frame = leave(tables, stack, state, counter, frame)
        if state < 0:
            return state if state == FRAMES_FULL else many
    return many


@njit(**BORROWS, **INNER)
def _add_next_choice(tables, walk, known, state, counter, frame, row_class):  # type: ignore[no-untyped-def]
    """Add the same place with the least assigned counter above those that share the row of (state, counter).

    Not for a state that counts what it reads: its counter gets to other values than assigned ones.
    """
    high = max(known.classes[row_class, CLASS_BOUNDS + 1], counter)
    following = np.searchsorted(walk.assigned, high, side="right")
    if following == walk.assigned.shape[0]:
        return
    for byte in range(256):
        target = _target(tables, state, byte)
        if target >= 0:
            number = tables.states[target, STATE_INSTRUCTION]
            if tables.instructions[number, INSTRUCTION_ACTION] == INCREMENT:
                return
    add_place(walk, state, np.int64(walk.assigned[following]), frame)


@njit(inline="always", **BORROWS)
def _make_row(arrays, walk, state, counter, frame):  # type: ignore[no-untyped-def]
    """Make the row of a place whose class is not known. Returns the class, or what `make_row` does."""
    ends = may_end(arrays.tables, arrays.stack, state, counter, frame)
    if ends == FRAMES_FULL:
        return ends
    many = walk.counters[COUNT_ROWS]
    row = walk.rows[many]
    row_class = make_row(arrays, True, state, counter, frame, row, np.int64(TREE_IF_SHORT))
    if row_class >= 0:
        if ends:
            allow_all(row, walk.eos_row)
        walk.classes[many] = row_class
        walk.counters[COUNT_ROWS] = many + 1
    return row_class


@njit(inline="always", **BORROWS)
def _next_place(walk):  # type: ignore[no-untyped-def]
    """The first place in a state that has not been looked at, else the first of the others; COUNT_FOUND at the end.

    A state in another frame, or with another counter, mostly has a row that is known or soon made.
    """
    counters, first = walk.counters, walk.first
    found = counters[COUNT_FOUND]
    while counters[COUNT_FRESH] < found and first[walk.places[counters[COUNT_FRESH], 0]] >= 0:
        counters[COUNT_FRESH] += 1
    if counters[COUNT_FRESH] < found:
        return counters[COUNT_FRESH]
    while counters[COUNT_LATER] < found and first[walk.places[counters[COUNT_LATER], 0]] == counters[COUNT_LATER]:
        counters[COUNT_LATER] += 1
    return counters[COUNT_LATER]


@njit(inline="always", **BORROWS)
def look_ahead(arrays, walk, by_hand, made):  # type: ignore[no-untyped-def]
    """Look at the next places, a batch at most, and make the rows of classes that are not known.

    Returns a place whose row the caller must make, and then tell as `made`: it has no class or is WIDE; with `by_hand`,
    each place. Or MORE, OVER, FRAMES_FULL, CLASSES_FULL.
    """
    tables, stack, known = arrays.tables, arrays.stack, arrays.classes
    counters = walk.counters
    counters[COUNT_ROWS] = 0
    last = max(counters[COUNT_BUDGET] - walk.rows.shape[0], 0)
    while counters[COUNT_BUDGET] > last:
        if _add_returns(tables, stack, walk) == FRAMES_FULL:
            return np.int64(FRAMES_FULL)
        place = _next_place(walk)
        if place == counters[COUNT_FOUND]:
            return np.int64(OVER)
        state, counter, frame = walk.places[place, 0], walk.places[place, 1], walk.places[place, 2]
        row_class = find_class(known, stack, state, counter, frame)
        if row_class < 0 or known.classes[row_class, CLASS_AHEAD] < counters[COUNT_WALK]:
            if made != place and row_class < 0 and not by_hand:
                row_class = _make_row(arrays, walk, state, counter, frame)
                if row_class in (FRAMES_FULL, CLASSES_FULL):
                    return row_class
            if made != place and (row_class < 0 or by_hand):
                return place
            following = _add_following(arrays, walk, state, counter, frame)
            if following == FRAMES_FULL:
                return following
            if row_class >= 0:
                # Where nothing may be read, neither may it after another choice that comes later still.
                if following > 0:
                    _add_next_choice(tables, walk, known, state, counter, frame, row_class)
                known.classes[row_class, CLASS_AHEAD] = counters[COUNT_WALK]
            counters[COUNT_BUDGET] -= 1
        if walk.first[state] < 0:
            walk.first[state] = place
        elif place == counters[COUNT_LATER]:
            counters[COUNT_LATER] += 1
    return np.int64(OVER if last == 0 else MORE)
