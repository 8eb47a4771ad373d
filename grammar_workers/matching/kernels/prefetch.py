"""The compiled walk over the places ahead: configurations between ASCII characters, and their mask rows.

`tables` and `stack` are as in `kernels`, `known` is `RowClasses.tables`, `walk` is `PlacesAhead.tables`: the places
found so far (int64 [capacity, 4]: a configuration, and whether its row has been made by somebody else), the hash table
of these (`target_kernels.place_of`), numbers about the walk (int64 [COUNTERS]), which classes (bool [classes]) and
which frames (bool [frames]) it has been at.

Whatever finds a table full can be done again once there is room: places are told apart by what they are, and marks are
set last.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.mask import CLASSES_FULL, make_row
from grammar_workers.matching.kernels.mask_classes import BOUNDS, find_class
from grammar_workers.matching.kernels.step import (
    ACTION,
    BORROWS,
    DEAD,
    FRAMES_FULL,
    INCREMENT,
    LIT,
    OP,
    PARENT,
    ROW,
    SAVED,
    SILENT_MOVES,
    SITE,
    arrive,
    leave,
    may_end,
    step,
)
from grammar_workers.matching.kernels.transitions import FOUND_FULL, place_of
from grammar_workers.matching.kernels.trie_walks import take
from grammar_workers.matching.mask_store import digest_of, equal

# Numbers about a walk: how many places there are, the next one to look at, the first whose frames have not been looked
# into, how many may still be looked at. And what has been found since it was taken away: different rows, classes that
# have them, places whose rows somebody else has to make.
FOUND, NEXT, UNEXPLORED, BUDGET, ROWS, CLASSES, OTHERS, COUNTERS = range(8)
HAS_ROW = 3
MORE, OVER = range(2)


@njit(**BORROWS)
def add_place(walk, state, register, frame):  # type: ignore[no-untyped-def]
    """Put a configuration at the end of the places unless it is one of them; FOUND_FULL or something else."""
    places, seen, counters, _, _ = walk
    place = place_of(places, seen, counters[FOUND], state, register, frame)
    if place == counters[FOUND]:
        places[place, HAS_ROW] = 0
        counters[FOUND] = place + 1
    return place


@njit(**BORROWS)
def add_again(walk, state, register, frame):  # type: ignore[no-untyped-def]
    """Put a configuration, whose row has been made meanwhile, at the end of the places. 0 or FOUND_FULL."""
    places, _, counters, _, _ = walk
    place = counters[FOUND]
    if place == places.shape[0]:
        return np.int64(FOUND_FULL)
    places[place, 0] = state
    places[place, 1] = register
    places[place, 2] = frame
    places[place, HAS_ROW] = 1
    counters[FOUND] = place + 1
    return np.int64(0)


@njit(**BORROWS)
def _after_ascii(tables, stack, path, walk, state, register, frame):  # type: ignore[no-untyped-def]
    """Add where bytes below 128 lead to. Returns how many such bytes were found, FRAMES_FULL or FOUND_FULL."""
    states, table = tables[0], tables[1]
    many = np.int64(0)
    taken = path[path.shape[0] - 1]
    taken[:] = 0
    for _ in range(SILENT_MOVES):
        row = states[state, ROW]
        before = np.int64(DEAD)
        for byte in range(128):
            direct = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
            literal = states[state, LIT] == byte
            if (direct < 0 and not literal) or not take(taken, byte):
                continue
            if direct == before and not literal:
                continue
            before = direct
            reached, register_there, frame_there = step(tables, stack, state, register, frame, byte)
            if reached == FRAMES_FULL:
                return reached
            if reached >= 0:
                place = add_place(walk, reached, register_there, frame_there)
                if place < 0:
                    return place
                many += 1
        # What is left is read by the caller.
        state, register, frame = leave(tables, stack, state, register, frame)
        if state < 0:
            return state if state == FRAMES_FULL else many
    return many


@njit(**BORROWS)
def _beside(tables, known, assigned, state, register, row_class):  # type: ignore[no-untyped-def]
    """The least register of `assigned` (sorted) above the bounds of the class that (state, register) belongs to, or -1.

    -1 also for a state that counts what it reads: its register gets to other values than assigned ones.
    """
    states, table, ops = tables[0], tables[1], tables[2]
    high = max(known[0][row_class, BOUNDS + 1], register)
    first = np.searchsorted(assigned, high, side="right")
    if first == assigned.shape[0]:
        return np.int64(-1)
    row = states[state, ROW]
    for byte in range(256):
        target = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
        if states[state, LIT] == byte:
            target = np.int64(state + 1)
        if target >= 0 and ops[states[target, OP], ACTION] == INCREMENT:
            return np.int64(-1)
    return np.int64(assigned[first])


@njit(**BORROWS)
def _after_return(tables, stack, walk, sites, frame):  # type: ignore[no-untyped-def]
    """Add where callers go on when the rule that was called with `frame` returns: one configuration for each label."""
    frames, returns = stack[0], tables[4]
    site = frames[frame, SITE]
    following = np.searchsorted(sites, site, side="right")
    end = np.int64(sites[following]) if following < sites.shape[0] else returns.shape[0]
    for place in range(site, end):
        if returns[place] >= 0:
            state, register, below = arrive(
                tables, stack, np.int64(returns[place]), frames[frame, SAVED], frames[frame, PARENT]
            )
            added = state
            if state >= 0:
                added = add_place(walk, state, register, below)
            if added < DEAD:
                return added
    return np.int64(0)


@njit(**BORROWS)
def _explore_frames(tables, stack, walk, sites):  # type: ignore[no-untyped-def]
    """Add where the callers go on that wait for the places found last, and theirs, each once."""
    places, _, counters, _, met = walk
    frames = stack[0]
    while counters[UNEXPLORED] < counters[FOUND]:
        top = places[counters[UNEXPLORED], 2]
        frame = top
        while not met[frame] and frame > 0:
            status = _after_return(tables, stack, walk, sites, frame)
            if status < 0:
                return status
            frame = frames[frame, PARENT]
        while top != frame:
            met[top] = True
            top = frames[top, PARENT]
        counters[UNEXPLORED] += 1
    return np.int64(0)


@njit(**BORROWS)
def _intern(rows, digests, weights, many):  # type: ignore[no-untyped-def]
    """The place of rows[many] among those before it; `many` when it is new."""
    digests[many] = digest_of(rows[many], weights)
    for place in range(many):
        if digests[place] == digests[many] and equal(rows[place], rows[many]):
            return place
    return many


@njit(**BORROWS)
def _make_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, slices, path, known, counters, batch, constants, state, register, frame
):
    """Make the row of a place whose class is not known. Returns the class, or what `make_row` does."""
    rows, digests, classes, _ = batch
    ends = may_end(tables, stack, state, register, frame)
    if ends == FRAMES_FULL:
        return ends
    row = rows[counters[ROWS]]
    row_class = make_row(tables, stack, trees, slices, path, known, 1, state, register, frame, row, 0)
    if row_class < 0:
        return row_class
    if ends:
        row |= constants[0]
    number = _intern(rows, digests, constants[1], counters[ROWS])
    counters[ROWS] = max(counters[ROWS], number + 1)
    classes[counters[CLASSES], 0] = row_class
    classes[counters[CLASSES], 1] = number
    counters[CLASSES] += 1
    return row_class


@njit(**BORROWS)
def _follow(tables, stack, path, known, walk, constants, state, register, frame, row_class):  # type: ignore[no-untyped-def]
    """Add the places that follow one, or stand beside it. Returns 0 (or more), FRAMES_FULL or FOUND_FULL."""
    reached = _after_ascii(tables, stack, path, walk, state, register, frame)
    # Where nothing may be read, neither may it after another choice that comes later still.
    if reached > 0 and row_class >= 0:
        other = _beside(tables, known, constants[3], state, register, row_class)
        if other >= 0:
            return add_place(walk, state, other, frame)
    return reached


@njit(**BORROWS)
def look_ahead(  # type: ignore[no-untyped-def]
    tables, stack, trees, slices, path, known, walk, batch, constants, by_hand
):
    """Look at the next places, as many as `batch` has room for, and make the rows of classes that are not known.

    `batch` is (rows uint32 [n, words], their digests uint64 [n], classes with the places of their rows int64 [n, 2],
    and places whose rows somebody else must make, int64 [n]: with `by_hand` all of them, else those that have no class
    or are WIDE or ENTERS_STRING). What follows the latter is found once they are there again (`add_again`).
    `constants` are (the row of the end tokens; the weights of digests; where return sites begin, and the values that
    ops assign to registers: both ascending int32). Returns MORE, OVER, FRAMES_FULL, FOUND_FULL or CLASSES_FULL.
    """
    places, _, counters, looked_at, _ = walk
    most = batch[0].shape[0]
    looked = 0
    while looked < most and counters[CLASSES] < most and counters[OTHERS] < most:
        status = _explore_frames(tables, stack, walk, constants[2])
        if status < 0:
            return status
        place = counters[NEXT]
        if place == counters[FOUND]:
            return np.int64(MORE if counters[OTHERS] > 0 else OVER)
        state, register, frame = places[place, 0], places[place, 1], places[place, 2]
        has_row = places[place, HAS_ROW] == 1
        row_class = find_class(known, stack, state, register, frame)
        if row_class >= 0 and looked_at[row_class]:
            counters[NEXT] += 1
            continue
        if not has_row:
            if counters[BUDGET] == 0:
                return np.int64(MORE if counters[OTHERS] > 0 else OVER)
            if row_class < 0 and not by_hand:
                row_class = _make_row(
                    tables, stack, trees, slices, path, known, counters, batch, constants, state, register, frame
                )
                if row_class in (FRAMES_FULL, CLASSES_FULL):
                    return row_class
        if has_row or (row_class >= 0 and not by_hand):
            status = _follow(tables, stack, path, known, walk, constants, state, register, frame, row_class)
            if status < 0:
                return status
            if row_class >= 0:
                looked_at[row_class] = True
        else:
            batch[3][counters[OTHERS]] = place
            counters[OTHERS] += 1
        counters[BUDGET] -= not has_row
        counters[NEXT] += 1
        looked += 1
    return np.int64(MORE)


@njit(**BORROWS)
def lay_places(places, seen, many):  # type: ignore[no-untyped-def]
    """Put the first `many` places into a fresh hash table (see `target_kernels.place_of`)."""
    for place in range(many):
        place_of(places, seen, place, places[place, 0], places[place, 1], places[place, 2])
