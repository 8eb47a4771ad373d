"""What a walk over the places ahead of a pushdown automaton holds (see `prefetch`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import prefetch
from grammar_workers.matching.kernels.prefetch import (
    COUNT_BUDGET,
    COUNT_FOUND,
    COUNT_HERE,
    COUNT_MADE,
    COUNT_ROWS,
    COUNTS,
    PLACE_COLUMNS,
    Batch,
    Walk,
)
from grammar_workers.matching.recognizer import Configuration, PrefetchedRows

_PLACES = 1024
_BATCH = 64
"""Places that one call looks at: half a millisecond, in which nobody else can walk the automaton."""


class PrefetchQueue:
    """Places found, `start` first, of which `budget` may be looked at, and rows (uint32 [words]) made there.

    `states`: how many the automaton has.
    """

    def __init__(self, start: Configuration, budget: int, words: int, states: int) -> None:
        self.walk = Walk(
            np.empty((_PLACES, PLACE_COLUMNS), np.int64),
            np.full(_PLACES * 4, -1, np.int32),
            np.zeros(COUNTS, np.int64),
            np.zeros(0, np.bool_),
            np.full(states, -1, np.int32),
            np.zeros(0, np.bool_),
        )
        self.batch = Batch(
            np.empty((_BATCH, words), np.uint32),
            np.empty(_BATCH, np.int64),
        )
        self.walk.counters[COUNT_BUDGET] = budget
        prefetch.add_place(self.walk, *start)

    @property
    def nbytes(self) -> int:
        arrays: tuple[NDArray[Any], ...] = (*self.walk, *self.batch)
        return sum(array.nbytes for array in arrays)

    @property
    def budget(self) -> int:
        """How many places may still be looked at."""
        return int(self.walk.counters[COUNT_BUDGET])

    def add(self, configuration: Configuration) -> None:
        """Find one more place."""
        while prefetch.add_place(self.walk, *configuration) < 0:
            self.grow()

    def take(self) -> PrefetchedRows:
        """The rows made since the last time, valid until the next call of the kernel."""
        counters = self.walk.counters
        many = counters[COUNT_ROWS]
        counters[COUNT_ROWS] = 0
        return PrefetchedRows(list(self.batch.rows[:many]), self.batch.classes[:many].tolist())

    def next_by_hand(self) -> Configuration:
        """The place that the walk has got to, whose row the caller makes now."""
        self.walk.counters[COUNT_MADE] = 1
        return tuple(self.walk.places[self.walk.counters[COUNT_HERE]].tolist())

    def fit(self, classes: int, frames: int) -> None:
        """Make room for marks of as many classes and frames."""
        looked_at, met = self.walk.looked_at, self.walk.met
        if len(looked_at) < classes or len(met) < frames:
            looked_at, met = (
                np.concatenate([marks, np.zeros(max(many - len(marks), 0), np.bool_)])
                for marks, many in ((looked_at, classes), (met, frames))
            )
            self.walk = self.walk._replace(looked_at=looked_at, met=met)

    def grow(self) -> None:
        """Make room for as many places again."""
        places = np.concatenate([self.walk.places, np.empty_like(self.walk.places)])
        seen = np.full(len(self.walk.seen) * 2, -1, np.int32)
        prefetch.lay_places(places, seen, self.walk.counters[COUNT_FOUND])
        self.walk = self.walk._replace(places=places, seen=seen)
