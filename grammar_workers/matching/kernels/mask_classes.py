"""Configurations that share a mask row although their stacks or registers differ where no token can tell.

A walk notes what it looked at (the trace, see `kernels`); its row is kept under that: the machine state, the topmost
frames that were looked into, bounds of the register. A string deep inside of nested objects mostly depends on one or
two frames, one with a maximal length only near its end: endlessly many configurations have a few dozen rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.step import (
    BORROWS,
    DEAD,
    FIRST_LEVEL,
    HIGH,
    LEVELS,
    LOOKED_INTO,
    LOW,
    PARENT,
    SAVED,
    SITE,
    bucket_of,
    may_end,
    step,
)

# Columns of a class. FRAMES: how many are looked into, from TOP down; NEXT chains a hash bucket; from BOUNDS on the
# lowest and the highest register of each level.
_STATE, _FRAMES, _TOP, _NEXT, BOUNDS = range(5)
CLASS_COLUMNS = BOUNDS + 2 * LEVELS


class RowClasses:
    """Numbers the classes in the order in which they are noted. The caller serialises all calls."""

    def __init__(self) -> None:
        self.tables = (np.zeros((16, CLASS_COLUMNS), np.int64), np.full(32, -1, np.int64), np.zeros(1, np.int64))
        """The classes, hash buckets, how many classes there are: the plain tuple that kernels take."""

    @property
    def nbytes(self) -> int:
        return self.tables[0].nbytes + self.tables[1].nbytes

    def grow(self, stack: tuple[np.ndarray, ...]) -> None:
        """Make room for as many again. `stack` as in `kernels`."""
        classes, buckets, many = self.tables
        self.tables = (
            np.concatenate([classes, np.zeros_like(classes)]),
            np.full(len(buckets) * 2, -1, np.int64),
            many,
        )
        _lay_chains(self.tables, stack)


@njit(inline="always", **BORROWS)
def _bucket(buckets, frames, state, looked_into, frame):  # type: ignore[no-untyped-def]
    """By state and the topmost site: -1 where there is none, -2 where it does not matter."""
    site = np.int64(-2)
    if looked_into > 0:
        site = frames[frame, SITE] if frame > 0 else np.int64(-1)
    return bucket_of(buckets, state, site, np.int64(0))


@njit(**BORROWS)
def find_class(known, stack, state, register, frame):  # type: ignore[no-untyped-def]
    """The class of this configuration, or -1; `known` is `RowClasses.tables`."""
    classes, buckets, _ = known
    frames = stack[0]
    for looked_into in range(2):
        place = buckets[_bucket(buckets, frames, state, looked_into, frame)]
        while place >= 0:
            if classes[place, _STATE] == state and _belongs(classes, place, frames, register, frame):
                return place
            place = classes[place, _NEXT]
    return np.int64(-1)


@njit(inline="always", **BORROWS)
def _belongs(classes, place, frames, register, frame):  # type: ignore[no-untyped-def]
    """Whether the register is within the bounds of the class, and its topmost frames are like those of the class."""
    if not classes[place, BOUNDS] <= register <= classes[place, BOUNDS + 1]:
        return False
    other = classes[place, _TOP]
    for level in range(1, classes[place, _FRAMES] + 1):
        if frame == other:
            return True
        if frame == 0 or other == 0 or frames[frame, SITE] != frames[other, SITE]:
            return False
        bounds = BOUNDS + 2 * level
        if not classes[place, bounds] <= frames[frame, SAVED] <= classes[place, bounds + 1]:
            return False
        frame = frames[frame, PARENT]
        other = frames[other, PARENT]
    return True


@njit(**BORROWS)
def _lay_chain(classes, buckets, place, frames):  # type: ignore[no-untyped-def]
    bucket = _bucket(buckets, frames, classes[place, _STATE], classes[place, _FRAMES], classes[place, _TOP])
    classes[place, _NEXT] = buckets[bucket]
    buckets[bucket] = place


@njit(**BORROWS)
def _lay_chains(known, stack):  # type: ignore[no-untyped-def]
    classes, buckets, many = known
    for place in range(many[0]):
        _lay_chain(classes, buckets, place, stack[0])


@njit(**BORROWS)
def note_class(known, stack, state, frame):  # type: ignore[no-untyped-def]
    """The new class of all configurations that the walk just traced in `stack` would have gone the same way for.

    -1 where the walk looked too far down. There must be room for it.
    """
    classes, buckets, counter = known
    frames, trace = stack[0], stack[3]
    if trace[LOOKED_INTO] >= LEVELS:
        return np.int64(-1)
    many = counter[0]
    classes[many, _STATE] = state
    classes[many, _FRAMES] = trace[LOOKED_INTO]
    classes[many, _TOP] = frame
    for level in range(trace[LOOKED_INTO] + 1):
        classes[many, BOUNDS + 2 * level] = trace[FIRST_LEVEL + 3 * level + LOW]
        classes[many, BOUNDS + 2 * level + 1] = trace[FIRST_LEVEL + 3 * level + HIGH]
    _lay_chain(classes, buckets, many, frames)
    counter[0] = many + 1
    return many


@njit(**BORROWS)
def advance(tables, stack, known, text, offsets, token, state, register, frame):  # type: ignore[no-untyped-def]
    """The configuration after the bytes text[offsets[token] : offsets[token + 1]], at least one.

    Its state is DEAD or FRAMES_FULL when there is none. The fourth number is whether the text may stop there (see
    `kernels.may_end`), the fifth the class or -1.
    """
    if offsets[token] == offsets[token + 1]:
        return np.int64(DEAD), register, frame, np.int64(0), np.int64(-1)
    for i in range(offsets[token], offsets[token + 1]):
        state, register, frame = step(tables, stack, state, register, frame, text[i])
        if state < 0:
            return state, register, frame, np.int64(0), np.int64(-1)
    ends = may_end(tables, stack, state, register, frame)
    return state, register, frame, ends, find_class(known, stack, state, register, frame)
