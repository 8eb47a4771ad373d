"""Configurations that share a mask row although their stacks or registers differ where no token can tell.

A walk notes what it looked at (the trace, see `kernels`); its row is kept under that: the machine state, the topmost
frames that were looked into, bounds of the register. A string deep inside of nested objects mostly depends on one or
two frames, one with a maximal length only near its end: endlessly many configurations have a few dozen rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.kernels import (
    FIRST_LEVEL,
    HIGH,
    LEVELS,
    LOOKED_INTO,
    LOW,
    OPTIONS,
    PARENT,
    SAVED,
    SITE,
    bucket_of,
)
from grammar_workers.walker import Configuration

# Columns of a class. FRAMES: how many are looked into, from TOP down; NEXT chains a hash bucket; from BOUNDS on the
# lowest and the highest register of each level.
_STATE, _FRAMES, _TOP, _NEXT, _BOUNDS = range(5)


class RowClasses:
    """Numbers the classes in the order in which they are noted. The caller serialises all calls."""

    def __init__(self) -> None:
        self._classes = np.zeros((16, _BOUNDS + 2 * LEVELS), np.int64)
        self._buckets = np.full(32, -1, np.int64)
        self._many = 0

    @property
    def nbytes(self) -> int:
        return self._classes.nbytes + self._buckets.nbytes

    def find(self, stack: tuple[np.ndarray, ...], configuration: Configuration) -> int:
        """The class of this configuration, or -1."""
        return int(_find(self._classes, self._buckets, stack[0], *configuration))

    def note(self, stack: tuple[np.ndarray, ...], configuration: Configuration) -> int:
        """The new class of all configurations that the walk just traced in `stack` would have gone the same way for.

        -1 where the walk looked too far down.
        """
        if stack[3][LOOKED_INTO] >= LEVELS:
            return -1
        if self._many == len(self._classes):
            self._classes = np.concatenate([self._classes, np.zeros_like(self._classes)])
            self._buckets = np.full(len(self._buckets) * 2, -1, np.int64)
            _lay_chains(self._classes, self._buckets, self._many, stack[0])
        state, _, frame = configuration
        _note(self._classes, self._buckets, self._many, stack[0], stack[3], state, frame)
        self._many += 1
        return self._many - 1


@njit(inline="always", **OPTIONS)
def _bucket(buckets, frames, state, looked_into, frame):  # type: ignore[no-untyped-def]
    """By state and the topmost site: -1 where there is none, -2 where it does not matter."""
    site = np.int64(-2)
    if looked_into > 0:
        site = frames[frame, SITE] if frame > 0 else np.int64(-1)
    return bucket_of(buckets, state, site, np.int64(0))


@njit(**OPTIONS)
def _find(classes, buckets, frames, state, register, frame):  # type: ignore[no-untyped-def]
    for looked_into in range(2):
        place = buckets[_bucket(buckets, frames, state, looked_into, frame)]
        while place >= 0:
            if classes[place, _STATE] == state and _belongs(classes, place, frames, register, frame):
                return place
            place = classes[place, _NEXT]
    return np.int64(-1)


@njit(inline="always", **OPTIONS)
def _belongs(classes, place, frames, register, frame):  # type: ignore[no-untyped-def]
    """Whether the register is within the bounds of the class, and its topmost frames are like those of the class."""
    if not classes[place, _BOUNDS] <= register <= classes[place, _BOUNDS + 1]:
        return False
    other = classes[place, _TOP]
    for level in range(1, classes[place, _FRAMES] + 1):
        if frame == other:
            return True
        if frame == 0 or other == 0 or frames[frame, SITE] != frames[other, SITE]:
            return False
        bounds = _BOUNDS + 2 * level
        if not classes[place, bounds] <= frames[frame, SAVED] <= classes[place, bounds + 1]:
            return False
        frame = frames[frame, PARENT]
        other = frames[other, PARENT]
    return True


@njit(**OPTIONS)
def _lay_chain(classes, buckets, place, frames):  # type: ignore[no-untyped-def]
    bucket = _bucket(buckets, frames, classes[place, _STATE], classes[place, _FRAMES], classes[place, _TOP])
    classes[place, _NEXT] = buckets[bucket]
    buckets[bucket] = place


@njit(**OPTIONS)
def _lay_chains(classes, buckets, many, frames):  # type: ignore[no-untyped-def]
    for place in range(many):
        _lay_chain(classes, buckets, place, frames)


@njit(**OPTIONS)
def _note(classes, buckets, many, frames, trace, state, frame):  # type: ignore[no-untyped-def]
    classes[many, _STATE] = state
    classes[many, _FRAMES] = trace[LOOKED_INTO]
    classes[many, _TOP] = frame
    for level in range(trace[LOOKED_INTO] + 1):
        classes[many, _BOUNDS + 2 * level] = trace[FIRST_LEVEL + 3 * level + LOW]
        classes[many, _BOUNDS + 2 * level + 1] = trace[FIRST_LEVEL + 3 * level + HIGH]
    _lay_chain(classes, buckets, many, frames)
