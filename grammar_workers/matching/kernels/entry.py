"""What is called of the kernels from Python: with all arrays of a recogniser as one argument (`arrays`).

Arguments that are not explained here are those of the kernels of the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import boolean, int32, int64, njit, uint32

from grammar_workers.matching.kernels import mask as mask_kernels
from grammar_workers.matching.kernels import mask_classes, prefetch, step, transitions
from grammar_workers.matching.kernels.arrays import arrays_of, classes_of, stack_of, tables_of, text_of
from grammar_workers.matching.kernels.prefetch import WALK
from grammar_workers.numba_options import OPTIONS, called_with


def _entry(*arguments: Any) -> Callable[[Any], Any]:
    """Compile a kernel that takes the entries of a recogniser and then arguments of these types."""

    def compiled(function: Any) -> Any:
        return called_with(int64[:, ::1], *arguments)(njit(**OPTIONS)(function))

    return compiled


@_entry(int64, int64, int64)
def arrive(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return step.arrive(tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64, int64)
def leave(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return step.leave(tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64, int64, int64)
def step_noting(entries, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    return step.step_noting(tables_of(entries), stack_of(entries), state, counter, frame, byte)


@_entry(int64, int64, int64)
def may_end(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return step.may_end(tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64, int64)
def find_class(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    return mask_classes.find_class(classes_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64)
def note_class(entries, state, frame):  # type: ignore[no-untyped-def]
    return mask_classes.note_class(classes_of(entries), stack_of(entries), state, frame)


@_entry(int64, int64, int64, int64)
def advance(entries, token, state, counter, frame):  # type: ignore[no-untyped-def]
    text, offsets = text_of(entries)
    return mask_classes.advance(
        tables_of(entries), stack_of(entries), classes_of(entries), text, offsets, token, state, counter, frame
    )


@_entry(int64, int64, int64, int64, uint32[::1], int64)
def make_row(entries, noting, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    return mask_kernels.make_row(arrays_of(entries), noting, state, counter, frame, mask, walked)


@_entry(int64, int64, int64, uint32[::1], int64)
def fill_row(entries, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    return mask_kernels.fill_row(arrays_of(entries), state, counter, frame, mask, walked)


@_entry(WALK, boolean, int64)
def look_ahead(entries, walk, by_hand, made):  # type: ignore[no-untyped-def]
    return prefetch.look_ahead(arrays_of(entries), walk, by_hand, made)


@_entry(int64, int64, int64, int64[:, ::1], int32[::1], int32[::1])
def pushdown_targets(entries, state, counter, frame, found, seen, places):  # type: ignore[no-untyped-def]
    return transitions.pushdown_targets(arrays_of(entries), state, counter, frame, found, seen, places)
