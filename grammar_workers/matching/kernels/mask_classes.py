"""Configurations that share a mask row although their stacks or counters differ where no token can tell.

A walk notes what it looked at (the trace, see `step`); its row is kept under that: the state, the topmost
frames that were looked into, bounds of the counter. A string deep inside of nested objects mostly depends on one or
two frames, one with a maximal length only near its end: endlessly many configurations have a few dozen rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray

from grammar_workers.matching.kernels.step import (
    FRAME_PARENT,
    FRAME_SAVED,
    FRAME_SITE,
    STACK,
    TRACE_COLUMNS,
    TRACE_FIRST_LEVEL,
    TRACE_HIGH,
    TRACE_LEVELS,
    TRACE_LOOKED_INTO,
    TRACE_LOW,
    Stack,
    bucket_of,
    may_end,
    step,
)
from grammar_workers.numba_options import BORROWS, INNER, called_with
from grammar_workers.pushdown.instructions import DEAD

CLASS_STATE, CLASS_FRAMES, CLASS_TOP, CLASS_NEXT, CLASS_AHEAD, CLASS_BOUNDS = range(6)
"""Columns of a class: the state; how many frames are looked into, and the topmost of them; the next class in the same
hash bucket (-1: none); the last walk ahead that has looked at the class (0: none, see `prefetch`); and from there on
the lowest and the highest counter of each level of the trace."""
CLASS_COLUMNS = CLASS_BOUNDS + 2 * TRACE_LEVELS


class ClassTables(NamedTuple):
    """The classes of one automaton; all int64."""

    classes: NDArray[np.int64]
    """[n, CLASS_COLUMNS]"""
    buckets: NDArray[np.int64]
    """[power of two]: the first class with this hash, or -1"""
    used: NDArray[np.int64]
    """[1]: how many classes there are"""


CLASS_TABLES = types.NamedTuple((int64[:, ::1], int64[::1], int64[::1]), ClassTables)
"""What numba calls them."""


_FIRST_CLASSES = 256
_GROWTH = 4
"""Growing costs more than a row: rarely used code and pages that are new."""


class MaskClasses:
    """Numbers the classes in the order in which they are noted. The caller serialises all calls."""

    def __init__(self) -> None:
        # Memory that nobody has written to costs nothing until then.
        classes = np.empty((_FIRST_CLASSES, CLASS_COLUMNS), np.int64)
        # Buckets for the table once grown: to lay the chains anew is half of what growing costs.
        buckets = np.full(2 * _GROWTH * len(classes), -1, np.int64)
        self.tables = ClassTables(classes, buckets, np.zeros(1, np.int64))

    @property
    def nbytes(self) -> int:
        return self.tables.classes.nbytes + self.tables.buckets.nbytes

    @property
    def is_half_full(self) -> bool:
        return 2 * int(self.tables.used[0]) > len(self.tables.classes)

    def grow(self, stack: Stack) -> None:
        """Make room for more."""
        classes, buckets, used = self.tables
        grown = np.empty((_GROWTH * len(classes), CLASS_COLUMNS), np.int64)
        grown[: len(classes)] = classes
        if len(buckets) >= 2 * len(grown):
            self.tables = ClassTables(grown, buckets, used)
            return
        self.tables = ClassTables(grown, np.full(_GROWTH * len(buckets), -1, np.int64), used)
        _lay_chains(self.tables, stack)


@njit(inline="always", **BORROWS)
def _bucket(buckets, frames, state, looked_into, frame):  # type: ignore[no-untyped-def]
    """By state and the topmost site: -1 where there is none, -2 where it does not matter."""
    site = np.int64(-2)
    if looked_into > 0:
        site = frames[frame, FRAME_SITE] if frame > 0 else np.int64(-1)
    return bucket_of(buckets, state, site, np.int64(0))


@njit(**BORROWS, **INNER)
def find_class(known, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """The class of this configuration, or -1; `known` is `MaskClasses.tables`."""
    classes, buckets, frames = known.classes, known.buckets, stack.frames
    for looked_into in range(2):
        place = buckets[_bucket(buckets, frames, state, looked_into, frame)]
        while place >= 0:
            if classes[place, CLASS_STATE] == state and _belongs(classes, place, frames, counter, frame):
                return place
            place = classes[place, CLASS_NEXT]
    return np.int64(-1)


@njit(inline="always", **BORROWS)
def _belongs(classes, place, frames, counter, frame):  # type: ignore[no-untyped-def]
    """Whether the counter is within the bounds of the class, and its topmost frames are like those of the class."""
    if not classes[place, CLASS_BOUNDS] <= counter <= classes[place, CLASS_BOUNDS + 1]:
        return False
    other = classes[place, CLASS_TOP]
    for level in range(1, classes[place, CLASS_FRAMES] + 1):
        if frame == other:
            return True
        if frame == 0 or other == 0 or frames[frame, FRAME_SITE] != frames[other, FRAME_SITE]:
            return False
        bounds = CLASS_BOUNDS + 2 * level
        if not classes[place, bounds] <= frames[frame, FRAME_SAVED] <= classes[place, bounds + 1]:
            return False
        frame = frames[frame, FRAME_PARENT]
        other = frames[other, FRAME_PARENT]
    return True


@njit(**BORROWS, **INNER)
def _lay_chain(classes, buckets, place, frames):  # type: ignore[no-untyped-def]
    bucket = _bucket(
        buckets, frames, classes[place, CLASS_STATE], classes[place, CLASS_FRAMES], classes[place, CLASS_TOP]
    )
    classes[place, CLASS_NEXT] = buckets[bucket]
    buckets[bucket] = place


@called_with(CLASS_TABLES, STACK)
@njit(**BORROWS)
def _lay_chains(known, stack):  # type: ignore[no-untyped-def]
    for place in range(known.used[0]):
        _lay_chain(known.classes, known.buckets, place, stack.frames)


@njit(**BORROWS, **INNER)
def note_class(known, stack, state, frame):  # type: ignore[no-untyped-def]
    """The new class of all configurations that the walk just traced in `stack` would have gone the same way for.

    -1 where the walk looked too far down. There must be room for it.
    """
    classes, trace = known.classes, stack.trace
    if trace[TRACE_LOOKED_INTO] >= TRACE_LEVELS:
        return np.int64(-1)
    many = known.used[0]
    classes[many, CLASS_STATE] = state
    classes[many, CLASS_FRAMES] = trace[TRACE_LOOKED_INTO]
    classes[many, CLASS_TOP] = frame
    classes[many, CLASS_AHEAD] = 0
    for level in range(trace[TRACE_LOOKED_INTO] + 1):
        bounds = TRACE_FIRST_LEVEL + TRACE_COLUMNS * level
        classes[many, CLASS_BOUNDS + 2 * level] = trace[bounds + TRACE_LOW]
        classes[many, CLASS_BOUNDS + 2 * level + 1] = trace[bounds + TRACE_HIGH]
    _lay_chain(classes, known.buckets, many, stack.frames)
    known.used[0] = many + 1
    return many


@njit(inline="always", **BORROWS)
def advance(tables, stack, known, text, offsets, token, state, counter, frame):  # type: ignore[no-untyped-def]
    """The configuration after the bytes text[offsets[token] : offsets[token + 1]], at least one.

    Its state is DEAD or FRAMES_FULL when there is none. The fourth number is whether the text may stop there (see
    `step.may_end`), the fifth the class or -1.
    """
    if offsets[token] == offsets[token + 1]:
        return np.int64(DEAD), counter, frame, np.int64(0), np.int64(-1)
    for i in range(offsets[token], offsets[token + 1]):
        state, counter, frame = step(tables, stack, state, counter, frame, text[i])
        if state < 0:
            return state, counter, frame, np.int64(0), np.int64(-1)
    ends = may_end(tables, stack, state, counter, frame)
    return state, counter, frame, ends, find_class(known, stack, state, counter, frame)
