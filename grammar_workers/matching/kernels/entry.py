"""What is called of the kernels from Python: with all arrays of a recogniser as one argument (`arrays`).

Arguments that are not explained here are those of the kernels of the same names.
"""

from __future__ import annotations

from numba import boolean, int32, int64, njit, uint32

from grammar_workers.matching.kernels import mask as mask_kernels
from grammar_workers.matching.kernels import mask_classes, prefetch, step, transitions
from grammar_workers.matching.kernels.arrays import (
    arrays_of,
    classes_of,
    path_of,
    stack_of,
    tables_of,
    text_of,
    trees_of,
)
from grammar_workers.matching.kernels.prefetch import WALK
from grammar_workers.numba_options import OPTIONS, called_with


@called_with(int64[:, ::1], int64, int64, int64)
@njit(**OPTIONS)
def arrive(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return step.arrive(tables_of(entries), stack_of(entries), state, counter, frame)


@called_with(int64[:, ::1], int64, int64, int64)
@njit(**OPTIONS)
def push_frame(entries, parent, site, saved):  # type: ignore[no-untyped-def]
    return step.push_frame(stack_of(entries), parent, site, saved)


@called_with(int64[:, ::1], int64)
@njit(**OPTIONS)
def look_into(entries, frame):  # type: ignore[no-untyped-def]
    step.look_into(stack_of(entries), frame)


@called_with(int64[:, ::1], int64, int64, int64)
@njit(**OPTIONS)
def may_end(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return step.may_end(tables_of(entries), stack_of(entries), state, counter, frame)


@called_with(int64[:, ::1], int64, int64, int64)
@njit(**OPTIONS)
def find_class(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return mask_classes.find_class(classes_of(entries), stack_of(entries), state, counter, frame)


@called_with(int64[:, ::1], int64, int64)
@njit(**OPTIONS)
def note_class(entries, state, frame):  # type: ignore[no-untyped-def]
    return mask_classes.note_class(classes_of(entries), stack_of(entries), state, frame)


@called_with(int64[:, ::1], int64, int64, int64, int64)
@njit(**OPTIONS)
def advance(entries, token, state, counter, frame):  # type: ignore[no-untyped-def]
    text, offsets = text_of(entries)
    return mask_classes.advance(
        tables_of(entries), stack_of(entries), classes_of(entries), text, offsets, token, state, counter, frame
    )


@called_with(int64[:, ::1], int64, int64, int64, int64, uint32[::1], int64, int64, int64)
@njit(**OPTIONS)
def make_row(entries, noting, state, counter, frame, mask, walked, low, high):  # type: ignore[no-untyped-def]
    return mask_kernels.make_row(arrays_of(entries), noting, state, counter, frame, mask, walked, low, high)


@called_with(int64[:, ::1], int64, int64, int64, uint32[::1], int64, int64, int64)
@njit(**OPTIONS)
def fill_row(entries, state, counter, frame, mask, walked, low, high):  # type: ignore[no-untyped-def]
    return mask_kernels.fill_row(arrays_of(entries), state, counter, frame, mask, walked, low, high)


@called_with(int64[:, ::1], WALK, boolean, int64)
@njit(**OPTIONS)
def look_ahead(entries, walk, by_hand, made):  # type: ignore[no-untyped-def]
    return prefetch.look_ahead(arrays_of(entries), walk, by_hand, made)


@called_with(int64[:, ::1], int64, int64, int64, int64[:, ::1], int32[::1], int32[::1])
@njit(**OPTIONS)
def pushdown_targets(entries, state, counter, frame, found, seen, places):  # type: ignore[no-untyped-def]
    return transitions.pushdown_targets(
        tables_of(entries),
        stack_of(entries),
        trees_of(entries),
        path_of(entries),
        state,
        counter,
        frame,
        found,
        seen,
        places,
    )
