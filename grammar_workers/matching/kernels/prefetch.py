"""The compiled walk over the places ahead: configurations between ASCII characters, and their mask rows.

`arrays` are those of a recogniser (`arrays.Arrays`), `tables` and `stack` are as in `step`.

Whatever finds a table full can be done again once there is room: places are told apart by what they are, and marks are
set last.

Places in states that have not been looked at come first, the others after them: a state in another frame, or with
another counter, mostly has a row that is known or soon made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import boolean, int32, int64, njit, types, uint32
from numpy.typing import NDArray

from grammar_workers.matching.kernels.mask import CLASSES_FULL, TREE_IF_SHORT, make_row
from grammar_workers.matching.kernels.mask_classes import CLASS_BOUNDS, find_class
from grammar_workers.matching.kernels.step import (
    FRAME_PARENT,
    FRAME_SAVED,
    FRAME_SITE,
    FRAMES_FULL,
    arrive,
    leave,
    may_end,
    step,
)
from grammar_workers.matching.kernels.transitions import place_of
from grammar_workers.matching.kernels.trie_walks import allow_all, take
from grammar_workers.numba_options import BORROWS, INNER, called_with, readonly
from grammar_workers.pushdown.instructions import (
    DEAD,
    FAR,
    INCREMENT,
    INSTRUCTION_ACTION,
    SILENT_MOVES,
    STATE_INSTRUCTION,
    STATE_LITERAL,
    STATE_ROW,
)

(
    COUNT_FOUND,
    COUNT_FRESH,
    COUNT_LATER,
    COUNT_HERE,
    COUNT_MADE,
    COUNT_UNEXPLORED,
    COUNT_BUDGET,
    COUNT_ROWS,
    COUNTS,
) = range(9)
"""Numbers about a walk: how many places there are; the next one to look at if its state is new, and the next one
whatever its state; the one that is looked at, and whether the caller has made its row; the first whose frames have not
been looked into, how many may still be looked at, how many rows have been made since they were taken away."""
PLACE_STATE, PLACE_REGISTER, PLACE_FRAME, PLACE_COLUMNS = range(4)
"""Columns of a place: a configuration."""
MORE, BY_HAND, OVER = range(3)


class Walk(NamedTuple):
    """The places found so far, and where the walk has been."""

    places: NDArray[np.int64]
    """[capacity, PLACE_COLUMNS]"""
    seen: NDArray[np.int32]
    """[power of two]: the hash table of the places, see `transitions.place_of`"""
    counters: NDArray[np.int64]
    """[COUNTS]"""
    looked_at: NDArray[np.bool_]
    """[classes]"""
    first: NDArray[np.int32]
    """[states]: the place in this state that has been looked at first, or -1"""
    met: NDArray[np.bool_]
    """[frames]: whether it has been looked where the callers go on"""


class Batch(NamedTuple):
    """Room for what one call finds."""

    rows: NDArray[np.uint32]
    """[n, words]"""
    classes: NDArray[np.int64]
    """[n]: those of the rows"""


class Constants(NamedTuple):
    """What does not change during a walk."""

    eos_row: NDArray[np.uint32]
    sites: NDArray[np.int32]
    """Where return sites begin, ascending."""
    assigned: NDArray[np.int32]
    """The values that instructions assign to the counter, ascending."""


WALK = types.NamedTuple((int64[:, ::1], int32[::1], int64[::1], boolean[::1], int32[::1], boolean[::1]), Walk)
BATCH = types.NamedTuple((uint32[:, ::1], int64[::1]), Batch)
CONSTANTS = types.NamedTuple((readonly(uint32[::1]), int32[::1], int32[::1]), Constants)
"""What numba calls them."""


@called_with(WALK, int64, int64, int64)
@njit(**BORROWS)
def add_place(walk, state, counter, frame):  # type: ignore[no-untyped-def]
    """Put a configuration at the end of the places unless it is one of them; FOUND_FULL or something else."""
    places, counters = walk.places, walk.counters
    place = place_of(places, walk.seen, counters[COUNT_FOUND], state, counter, frame)
    counters[COUNT_FOUND] = max(counters[COUNT_FOUND], place + 1)
    return place


@njit(**BORROWS, **INNER)
def _after_ascii(tables, stack, path, walk, state, counter, frame):  # type: ignore[no-untyped-def]
    """Add where bytes below 128 lead to. Returns how many such bytes were found, FRAMES_FULL or FOUND_FULL."""
    states, table = tables.states, tables.table
    many = np.int64(0)
    taken = path[path.shape[0] - 1]
    taken[:] = 0
    for _ in range(SILENT_MOVES):
        row = states[state, STATE_ROW]
        before = np.int64(DEAD)
        for byte in range(128):
            direct = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
            literal = states[state, STATE_LITERAL] == byte
            if (direct < 0 and not literal) or not take(taken, byte):
                continue
            if direct == before and not literal:
                continue
            before = direct
            reached, counter_there, frame_there = step(tables, stack, state, counter, frame, byte)
            if reached == FRAMES_FULL:
                return reached
            if reached >= 0:
                place = add_place(walk, reached, counter_there, frame_there)
                if place < 0:
                    return place
                many += 1
        # What is left is read by the caller.
        state, counter, frame = leave(tables, stack, state, counter, frame)
        if state < 0:
            return state if state == FRAMES_FULL else many
    return many


@njit(**BORROWS, **INNER)
def _beside(tables, known, assigned, state, counter, row_class):  # type: ignore[no-untyped-def]
    """The least counter of `assigned` (sorted) above the bounds of the class that (state, counter) belongs to, or -1.

    -1 also for a state that counts what it reads: its counter gets to other values than assigned ones.
    """
    states, table, instructions = tables.states, tables.table, tables.instructions
    high = max(known.classes[row_class, CLASS_BOUNDS + 1], counter)
    first = np.searchsorted(assigned, high, side="right")
    if first == assigned.shape[0]:
        return np.int64(-1)
    row = states[state, STATE_ROW]
    for byte in range(256):
        target = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
        if states[state, STATE_LITERAL] == byte:
            target = np.int64(state + 1)
        if target >= 0 and instructions[states[target, STATE_INSTRUCTION], INSTRUCTION_ACTION] == INCREMENT:
            return np.int64(-1)
    return np.int64(assigned[first])


@njit(**BORROWS, **INNER)
def _after_return(tables, stack, walk, sites, frame):  # type: ignore[no-untyped-def]
    """Add where callers go on when the rule that was called with `frame` returns: one configuration for each label."""
    frames, returns = stack.frames, tables.returns
    site = frames[frame, FRAME_SITE]
    following = np.searchsorted(sites, site, side="right")
    end = np.int64(sites[following]) if following < sites.shape[0] else returns.shape[0]
    for place in range(site, end):
        if returns[place] >= 0:
            state, counter, below = arrive(
                tables, stack, np.int64(returns[place]), frames[frame, FRAME_SAVED], frames[frame, FRAME_PARENT]
            )
            added = state
            if state >= 0:
                added = add_place(walk, state, counter, below)
            if added < DEAD:
                return added
    return np.int64(0)


@njit(**BORROWS, **INNER)
def _explore_frames(tables, stack, walk, sites):  # type: ignore[no-untyped-def]
    """Add where the callers go on that wait for the places found last, and theirs, each once."""
    places, counters, met, frames = walk.places, walk.counters, walk.met, stack.frames
    while counters[COUNT_UNEXPLORED] < counters[COUNT_FOUND]:
        top = places[counters[COUNT_UNEXPLORED], PLACE_FRAME]
        frame = top
        while not met[frame] and frame > 0:
            status = _after_return(tables, stack, walk, sites, frame)
            if status < 0:
                return status
            frame = frames[frame, FRAME_PARENT]
        while top != frame:
            met[top] = True
            top = frames[top, FRAME_PARENT]
        counters[COUNT_UNEXPLORED] += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _make_row(arrays, counters, batch, constants, state, counter, frame):  # type: ignore[no-untyped-def]
    """Make the row of a place whose class is not known. Returns the class, or what `make_row` does."""
    ends = may_end(arrays.tables, arrays.stack, state, counter, frame)
    if ends == FRAMES_FULL:
        return ends
    many = counters[COUNT_ROWS]
    row = batch.rows[many]
    row_class = make_row(
        arrays, True, state, counter, frame, row, np.int64(TREE_IF_SHORT), np.int64(-FAR), np.int64(FAR)
    )
    if row_class >= 0:
        if ends:
            allow_all(row, constants.eos_row)
        batch.classes[many] = row_class
        counters[COUNT_ROWS] = many + 1
    return row_class


@njit(inline="always", **BORROWS)
def _follow(arrays, walk, constants, state, counter, frame, row_class):  # type: ignore[no-untyped-def]
    """Add the places that follow one, or stand beside it. Returns 0 (or more), FRAMES_FULL or FOUND_FULL."""
    tables = arrays.tables
    reached = _after_ascii(tables, arrays.stack, arrays.path, walk, state, counter, frame)
    # Where nothing may be read, neither may it after another choice that comes later still.
    if reached > 0 and row_class >= 0:
        other = _beside(tables, arrays.classes, constants.assigned, state, counter, row_class)
        if other >= 0:
            return add_place(walk, state, other, frame)
    return reached


@njit(inline="always", **BORROWS)
def look_ahead(arrays, walk, batch, constants, by_hand):  # type: ignore[no-untyped-def]
    """Look at the next places, as many as `batch` has room for, and make the rows of classes that are not known.

    Returns MORE, OVER, FRAMES_FULL, FOUND_FULL, CLASSES_FULL; or BY_HAND where the caller must make the row of the next
    place and set COUNT_MADE, because it has no class or is WIDE; with `by_hand`, each row.
    """
    stack, known = arrays.stack, arrays.classes
    places, counters, looked_at, first = walk.places, walk.counters, walk.looked_at, walk.first
    most = batch.rows.shape[0]
    looked = 0
    while looked < most and counters[COUNT_ROWS] < most:
        status = _explore_frames(arrays.tables, stack, walk, constants.sites)
        if status < 0:
            return status
        if not counters[COUNT_MADE]:
            fresh = counters[COUNT_FRESH]
            while fresh < counters[COUNT_FOUND] and first[places[fresh, PLACE_STATE]] >= 0:
                fresh += 1
            counters[COUNT_FRESH] = fresh
            counters[COUNT_HERE] = fresh if fresh < counters[COUNT_FOUND] else counters[COUNT_LATER]
        place = counters[COUNT_HERE]
        if place == counters[COUNT_FOUND]:
            return np.int64(OVER)
        state, counter = places[place, PLACE_STATE], places[place, PLACE_REGISTER]
        frame = places[place, PLACE_FRAME]
        row_class = find_class(known, stack, state, counter, frame)
        if first[state] != place and (row_class < 0 or not looked_at[row_class]):
            if not counters[COUNT_MADE]:
                if counters[COUNT_BUDGET] == 0:
                    return np.int64(OVER)
                if by_hand:
                    return np.int64(BY_HAND)
                if row_class < 0:
                    row_class = _make_row(arrays, counters, batch, constants, state, counter, frame)
                    if row_class in (FRAMES_FULL, CLASSES_FULL):
                        return row_class
                    if row_class < 0:
                        return np.int64(BY_HAND)
            status = _follow(arrays, walk, constants, state, counter, frame, row_class)
            if status < 0:
                return status
            if row_class >= 0:
                looked_at[row_class] = True
            counters[COUNT_BUDGET] -= 1
            looked += 1
        if first[state] < 0:
            first[state] = place
        if place == counters[COUNT_LATER]:
            counters[COUNT_LATER] = place + 1
        counters[COUNT_MADE] = 0
    return np.int64(MORE)


@called_with(int64[:, ::1], int32[::1], int64)
@njit(**BORROWS)
def lay_places(places, seen, many):  # type: ignore[no-untyped-def]
    """Put the first `many` places into a fresh hash table (see `transitions.place_of`)."""
    for place in range(many):
        here = places[place]
        place_of(places, seen, place, here[PLACE_STATE], here[PLACE_REGISTER], here[PLACE_FRAME])
