"""Kernels that prefetch masks: a search through the configurations that ASCII characters can lead to.

`arrays` are the arrays of a recognizer (`arrays.Arrays`). `tables` are the tables of the automaton, and `stack` has its
return stacks (see `step`). A `Search` is the state of one search. A *place* is the index of a configuration that the
search has found. The search visits one place after the other. A visit computes the mask of the place. Then it adds the
configurations after each ASCII character, and the configurations after the current rule has returned to its caller. If
a kernel finds a table full, the caller enlarges the table and calls the kernel again. This is safe: each configuration
is added once, and a visit counts as done only after its last step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import boolean, int32, int64, njit, types, uint32
from numpy.typing import NDArray

from grammar_workers.matching.kernels import step
from grammar_workers.matching.kernels.arrays import arrays_of
from grammar_workers.matching.kernels.mask import CLASSES_FULL, TREE_IF_SHORT, find_or_fill_mask
from grammar_workers.matching.kernels.mask_classes import CLASS_AHEAD, CLASS_BOUNDS, find_class
from grammar_workers.matching.kernels.transitions import place_of
from grammar_workers.matching.kernels.trie_walks import allow_all
from grammar_workers.numba_options import BORROWS, INNER, OPTIONS, called_with, readonly
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.byte_classes import site_ends_of
from grammar_workers.pushdown.instructions import ASSIGN, DEAD, INSTRUCTION_ACTION, INSTRUCTION_VALUE
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Counters of a search: the number of places; the first place whose caller has not been added; the first place that may
# have a new state; the next place if no place has one; the number of places that may still be visited; the number of
# masks from the last call.
COUNT_FOUND, COUNT_RETURNED, COUNT_FRESH, COUNT_LATER, COUNT_BUDGET, COUNT_ROWS, COUNTS = range(7)
# Results of `look_ahead` other than places and full tables: call it again, or nothing is left to visit.
MORE, OVER = -10, -11
# Maximum number of places that one call visits, about half a millisecond. Meanwhile no other thread can use the
# automaton.
_BATCH = 64
# Capacity for places per place that may be visited. On the schemas of MaskBench, at most 3.4 are found per visited
# place.
_PLACES_FOUND = 4
# Maximum capacity for places. Configurations beyond it are not visited.
_MOST_PLACES = 1 << 18


class Search(NamedTuple):
    """The state of a prefetch search (a search for the masks that may come next).

    A *place* is the index of a configuration that the search has found.

    Attributes:
        places: The found configurations (state, counter, frame), int64 [capacity, 3].
        seen: Hash table of the found configurations, int32 [power of two], see `transitions.place_of`.
        counters: Counters of the search, int64 [COUNTS], indexed by COUNT_FOUND to COUNT_ROWS.
        visited: For each state: True if a place with this state has been visited, bool [states].
        rows: The masks from the last call, uint32 [batch, words]. The first `counters[COUNT_ROWS]` are valid.
        classes: The mask equivalence classes of these masks, int64 [batch].
        eos_row: Mask of the end tokens, uint32 [words].
        site_ends: For each index in `Tables.returns`, the end of its return site (the return states of one call), int32
            [returns].
        assigned: The distinct values that instructions assign to the counter, ascending, int32.
    """

    places: NDArray[np.int64]
    seen: NDArray[np.int32]
    counters: NDArray[np.int64]
    visited: NDArray[np.bool_]
    rows: NDArray[np.uint32]
    classes: NDArray[np.int64]
    eos_row: NDArray[np.uint32]
    site_ends: NDArray[np.int32]
    assigned: NDArray[np.int32]


# The numba type of `Search`.
SEARCH = types.NamedTuple(
    (
        *(int64[:, ::1], int32[::1], int64[::1], boolean[::1], uint32[:, ::1]),
        *(int64[::1], readonly(uint32[::1]), int32[::1], int32[::1]),
    ),
    Search,
)


def new_search(pushdown: PushdownAutomaton, vocabulary: Vocabulary, max_places: int) -> Search:
    """Return the state of a new search for masks to prefetch. It has found no configuration yet.

    The caller must add the first configurations with `add_place`.

    Args:
        pushdown: The automaton.
        vocabulary: Tokens of the model.
        max_places: Maximum number of configurations to visit. The search may find more.
    """
    room = min(_PLACES_FOUND * (max_places + _BATCH), _MOST_PLACES)
    counters = np.zeros(COUNTS, np.int64)
    counters[COUNT_BUDGET] = max_places
    instructions = pushdown.instructions
    return Search(
        np.empty((room, 3), np.int64),
        np.full(1 << (2 * room).bit_length(), -1, np.int32),
        counters,
        np.zeros(len(pushdown.states), np.bool_),
        np.empty((_BATCH, vocabulary.mask_words), np.uint32),
        np.empty(_BATCH, np.int64),
        vocabulary.eos_mask,
        site_ends_of(pushdown.tables),
        # Only property names assign the counter: their index in the declared order.
        np.unique(instructions[instructions[:, INSTRUCTION_ACTION] == ASSIGN, INSTRUCTION_VALUE]),
    )


@called_with(SEARCH, int64, int64, int64)
@njit(**BORROWS)
def add_place(search, state, counter, frame):  # type: ignore[no-untyped-def]
    """Add a configuration to a search, unless the search has found it already or has no room for it.

    Args:
        search: The search for masks to prefetch, changed in place.
        state: State of the configuration.
        counter: Counter of the configuration.
        frame: Frame (top of the return stack) of the configuration.
    """
    found = search.counters[COUNT_FOUND]
    if place_of(search.places, search.seen, found, state, counter, frame) == found:
        search.counters[COUNT_FOUND] = found + 1


@njit(**BORROWS, **INNER)
def _add_arrival(tables, stack, search, state, counter, frame):  # type: ignore[no-untyped-def]
    """Add the configuration after entering a state. Return its state, DEAD or FRAMES_FULL."""
    state, counter, frame = step.arrive(tables, stack, state, counter, frame)
    if state >= 0:
        add_place(search, state, counter, frame)
    return state


@njit(**BORROWS, **INNER)
def _add_returns(tables, stack, search):  # type: ignore[no-untyped-def]
    """Return 0 after adding the configurations after the returns from the latest places, or FRAMES_FULL.

    Each label of a return site leads to a configuration. As these are places, too, their callers follow.
    """
    counters, frames = search.counters, stack.frames
    while counters[COUNT_RETURNED] < counters[COUNT_FOUND]:
        frame = search.places[counters[COUNT_RETURNED], 2]
        site = frames[frame, step.FRAME_SITE]
        saved, parent = frames[frame, step.FRAME_SAVED], frames[frame, step.FRAME_PARENT]
        # Frame 0 has no caller.
        end = search.site_ends[site] if frame > 0 else site
        for label in range(site, end):
            target = np.int64(tables.returns[label])
            if target >= 0 and _add_arrival(tables, stack, search, target, saved, parent) == step.FRAMES_FULL:
                return np.int64(step.FRAMES_FULL)
        counters[COUNT_RETURNED] += 1
    return np.int64(0)


@njit(**BORROWS, **INNER)
def _add_following(tables, stack, search, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return 0 after adding the configuration after each ASCII byte that the state itself reads, or FRAMES_FULL.

    Bytes that a caller reads are not considered, because the configuration after the return is a place of its own.
    """
    before = np.int64(DEAD)
    for byte in range(128):
        target = step.target_of(tables, state, byte)
        if target >= 0 and target != before:
            before = target
            if _add_arrival(tables, stack, search, target, counter, frame) == step.FRAMES_FULL:
                return np.int64(step.FRAMES_FULL)
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _add_next_choice(search, known, state, counter, frame, row_class):  # type: ignore[no-untyped-def]
    """Add the same state with the smallest assigned counter above the bounds of the class `row_class`."""
    high = max(known.classes[row_class, CLASS_BOUNDS + 1], counter)
    following = np.searchsorted(search.assigned, high, side="right")
    if following < search.assigned.shape[0]:
        add_place(search, state, np.int64(search.assigned[following]), frame)


@njit(inline="always", **BORROWS)
def _add_mask(arrays, search, state, counter, frame):  # type: ignore[no-untyped-def]
    """Compute the mask of a place without a known class. Return the class, or an error of `find_or_fill_mask`."""
    ends = step.may_end(arrays.tables, arrays.stack, state, counter, frame)
    if ends == step.FRAMES_FULL:
        return ends
    many = search.counters[COUNT_ROWS]
    row = search.rows[many]
    row_class = find_or_fill_mask(arrays, True, state, counter, frame, row, np.int64(TREE_IF_SHORT))
    if row_class >= 0:
        if ends:
            allow_all(row, search.eos_row)
        search.classes[many] = row_class
        search.counters[COUNT_ROWS] = many + 1
    return row_class


@njit(inline="always", **BORROWS)
def _next_place(search):  # type: ignore[no-untyped-def]
    """Return the first place whose state has not been visited, else the next place in order; COUNT_FOUND at the end.

    New states come first, because other frames and counters of a visited state mostly have a mask that is cached or
    cheap to compute. The pass in order takes the first place of each state again, although its class has been visited.
    """
    counters = search.counters
    while counters[COUNT_FRESH] < counters[COUNT_FOUND]:
        if not search.visited[search.places[counters[COUNT_FRESH], 0]]:
            return counters[COUNT_FRESH]
        counters[COUNT_FRESH] += 1
    return counters[COUNT_LATER]


@called_with(int64[:, ::1], SEARCH, boolean, int64)
@njit(**OPTIONS)
def look_ahead(entries, search, by_hand, made):  # type: ignore[no-untyped-def]
    """Continue a search: visit up to 64 of the found configurations, and compute masks that have not been computed.

    A *place* is the index of a found configuration in `search.places`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2] (see `arrays`).
        search: The search. Its `rows`, `classes` and COUNT_ROWS receive the masks.
        by_hand: True if the caller computes the mask of every place itself. False if this kernel computes masks.
        made: Place whose mask the caller has computed since the last call. Any negative number if there is none.

    Returns:
        One number. 0 or more: a place whose mask the caller must compute, and which it passes as `made` in the next
        call. The reason is that the place has no mask equivalence class, that its prefix-tree walk is long, or that
        `by_hand` is True. MORE (-10): call again. OVER (-11): the search has ended. FRAMES_FULL (-2) or CLASSES_FULL
        (-5): enlarge the frame table or class table, and call again.
    """
    arrays = arrays_of(entries)
    tables, stack, known = arrays.tables, arrays.stack, arrays.classes
    counters = search.counters
    counters[COUNT_ROWS] = 0
    last = max(counters[COUNT_BUDGET] - search.rows.shape[0], 0)
    while counters[COUNT_BUDGET] > last:
        if _add_returns(tables, stack, search) == step.FRAMES_FULL:
            return np.int64(step.FRAMES_FULL)
        place = _next_place(search)
        if place == counters[COUNT_FOUND]:
            return np.int64(OVER)
        state, counter, frame = search.places[place, 0], search.places[place, 1], search.places[place, 2]
        row_class = find_class(known, stack, state, counter, frame)
        unvisited = row_class < 0 or not known.classes[row_class, CLASS_AHEAD]
        if unvisited and made != place:
            if row_class < 0 and not by_hand:
                row_class = _add_mask(arrays, search, state, counter, frame)
                if row_class in (step.FRAMES_FULL, CLASSES_FULL):
                    return row_class
            if row_class < 0 or by_hand:
                return place
        if unvisited:
            if _add_following(tables, stack, search, state, counter, frame) == step.FRAMES_FULL:
                return np.int64(step.FRAMES_FULL)
            if row_class >= 0:
                _add_next_choice(search, known, state, counter, frame, row_class)
                known.classes[row_class, CLASS_AHEAD] = 1
            counters[COUNT_BUDGET] -= 1
        # A place in a visited state comes from COUNT_LATER, any other place from COUNT_FRESH.
        counters[COUNT_LATER] += search.visited[state]
        search.visited[state] = True
    return np.int64(OVER if last == 0 else MORE)
