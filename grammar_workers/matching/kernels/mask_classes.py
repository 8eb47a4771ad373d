"""Mask equivalence classes: sets of configurations with equal masks, although their stacks or counters differ.

A mask is computed by a walk of the prefix tree. The walk records the parts of the configuration on which the mask
depends (the trace, see `step`): the state, the topmost stack frames that were popped, and a range for each counter. All
configurations that agree with this record are one class. Deep in nested objects, the mask inside a string mostly
depends on one or two frames. In a string with a maximum length, the mask depends on the counter only near the end. So
infinitely many configurations have a few dozen masks.

The classes are no equivalence classes in the strict sense. They may overlap, because two walks may record different
parts of configurations; `find_class` returns one of the classes of a configuration. Two classes may have equal masks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray

from grammar_workers.matching.kernels import step
from grammar_workers.numba_options import BORROWS, INNER, called_with

# Columns of a class: the state; the number of popped frames, and the topmost of them; the next class in the same hash
# bucket (-1: none); 1 if the current prefetch search has visited the class, else 0 (see `prefetch`); then the lowest
# and the highest counter of each level of the trace.
CLASS_STATE, CLASS_FRAMES, CLASS_TOP, CLASS_NEXT, CLASS_AHEAD, CLASS_BOUNDS = range(6)
CLASS_COLUMNS = CLASS_BOUNDS + 2 * step.TRACE_LEVELS


class ClassTables(NamedTuple):
    """The mask equivalence classes (configurations with equal masks) of one automaton. All arrays are int64.

    Attributes:
        classes: One class in each row, [n, CLASS_COLUMNS]. Rows from `used` on are not initialized.
        buckets: Hash table, [power of two]: the first class with this hash, or -1. The column CLASS_NEXT of a class is
            the next class with the same hash.
        used: Number of classes, [1].
    """

    classes: NDArray[np.int64]
    buckets: NDArray[np.int64]
    used: NDArray[np.int64]


# The numba type of `ClassTables`.
CLASS_TABLES = types.NamedTuple((int64[:, ::1], int64[::1], int64[::1]), ClassTables)


_FIRST_CLASSES = 256
# Growth factor of the table. Growing costs more than a mask, because it runs rarely used code and touches new
# memory pages.
_GROWTH = 4


class MaskClasses:
    """The table of the mask equivalence classes (configurations with equal masks) of one automaton.

    Classes are numbered from 0 in the order of their creation. The caller must serialize all calls.

    Attributes:
        tables: The arrays of the table. Kernels read and change them. `grow` replaces them.
    """

    def __init__(self) -> None:
        # The operating system provides memory pages at the first write, so unused rows are free.
        classes = np.empty((_FIRST_CLASSES, CLASS_COLUMNS), np.int64)
        # There are enough buckets for the enlarged table, because rebuilding the chains is half of the cost of growing.
        buckets = np.full(2 * _GROWTH * len(classes), -1, np.int64)
        self.tables = ClassTables(classes, buckets, np.zeros(1, np.int64))

    @property
    def nbytes(self) -> int:
        """Memory of the class table, in bytes."""
        return self.tables.classes.nbytes + self.tables.buckets.nbytes

    @property
    def is_half_full(self) -> bool:
        """True if more than half of the rows of the class table are used."""
        return 2 * int(self.tables.used[0]) > len(self.tables.classes)

    def begin_search(self) -> None:
        """Mark all classes as not visited. Call this before a search for masks to prefetch (see `prefetch`)."""
        self.tables.classes[: self.tables.used[0], CLASS_AHEAD] = 0

    def grow(self, stack: step.Stack) -> None:
        """Quadruple the number of rows of the class table.

        New arrays replace those in `tables`, so stored addresses of the old arrays become invalid.

        Args:
            stack: The return stacks of the automaton, which hold the frames of the classes. Not changed.
        """
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
    """Return the bucket by state and topmost site: -1 stands for no site, -2 for a site that does not matter."""
    site = np.int64(-2)
    if looked_into > 0:
        site = frames[frame, step.FRAME_SITE] if frame > 0 else np.int64(-1)
    return step.bucket_of(buckets, state, site, np.int64(0))


@njit(**BORROWS, **INNER)
def find_class(known, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return the mask equivalence class (set of configurations with equal masks) of a configuration.

    Args:
        known: The class table, `MaskClasses.tables`.
        stack: The return stacks of the automaton.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.

    Returns:
        The number of the class. -1 if the table has no class of this configuration.
    """
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
    """Return whether the counters are within the bounds of a class, and the topmost frames have its sites."""
    if not classes[place, CLASS_BOUNDS] <= counter <= classes[place, CLASS_BOUNDS + 1]:
        return False
    other = classes[place, CLASS_TOP]
    for level in range(1, classes[place, CLASS_FRAMES] + 1):
        if frame == other:
            return True
        if frame == 0 or other == 0 or frames[frame, step.FRAME_SITE] != frames[other, step.FRAME_SITE]:
            return False
        bounds = CLASS_BOUNDS + 2 * level
        if not classes[place, bounds] <= frames[frame, step.FRAME_SAVED] <= classes[place, bounds + 1]:
            return False
        frame = frames[frame, step.FRAME_PARENT]
        other = frames[other, step.FRAME_PARENT]
    return True


@njit(**BORROWS, **INNER)
def _lay_chain(classes, buckets, place, frames):  # type: ignore[no-untyped-def]
    bucket = _bucket(
        buckets, frames, classes[place, CLASS_STATE], classes[place, CLASS_FRAMES], classes[place, CLASS_TOP]
    )
    classes[place, CLASS_NEXT] = buckets[bucket]
    buckets[bucket] = place


@called_with(CLASS_TABLES, step.STACK)
@njit(**BORROWS)
def _lay_chains(known, stack):  # type: ignore[no-untyped-def]
    for place in range(known.used[0]):
        _lay_chain(known.classes, known.buckets, place, stack.frames)


@njit(**BORROWS, **INNER)
def note_class(known, stack, state, frame):  # type: ignore[no-untyped-def]
    """Add a mask equivalence class (set of configurations with equal masks) for the mask that was computed last.

    The trace in `stack` records the frames and counters on which this mask depends. The class has all configurations
    with the same state that agree with the trace. The table must have room for one more class.

    Args:
        known: The class table, `MaskClasses.tables`, changed in place.
        stack: The return stacks and the trace.
        state: State of the configuration that has this mask.
        frame: Frame (top of the return stack) of the configuration that has this mask.

    Returns:
        The number of the new class. -1 if the mask depends on more stack frames than the trace can record (11).
    """
    classes, trace = known.classes, stack.trace
    if trace[step.TRACE_LOOKED_INTO] >= step.TRACE_LEVELS:
        return np.int64(-1)
    many = known.used[0]
    classes[many, CLASS_STATE] = state
    classes[many, CLASS_FRAMES] = trace[step.TRACE_LOOKED_INTO]
    classes[many, CLASS_TOP] = frame
    classes[many, CLASS_AHEAD] = 0
    for level in range(trace[step.TRACE_LOOKED_INTO] + 1):
        bounds = step.TRACE_FIRST_LEVEL + step.TRACE_COLUMNS * level
        classes[many, CLASS_BOUNDS + 2 * level] = trace[bounds + step.TRACE_LOW]
        classes[many, CLASS_BOUNDS + 2 * level + 1] = trace[bounds + step.TRACE_HIGH]
    _lay_chain(classes, known.buckets, many, stack.frames)
    known.used[0] = many + 1
    return many
