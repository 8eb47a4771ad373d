"""What a walk over the places ahead of a machine holds (see `ahead_kernels`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import prefetch
from grammar_workers.matching.kernels.prefetch import BUDGET, CLASSES, COUNTERS, FOUND, OTHERS, ROWS
from grammar_workers.matching.recognizer import Configuration, RowsAhead

_PLACES = 1024
_BATCH = 64
"""Places that one call looks at: half a millisecond, in which nobody else can walk the automaton."""


class PlacesAhead:
    """Places found, `start` first, of which `budget` may be looked at, and rows (uint32 [words]) made there."""

    def __init__(self, start: Configuration, budget: int, words: int) -> None:
        self.tables: tuple[NDArray[Any], ...] = (
            np.empty((_PLACES, 4), np.int64),
            np.full(_PLACES * 4, -1, np.int32),
            np.zeros(COUNTERS, np.int64),
            np.zeros(0, np.bool_),
            np.zeros(0, np.bool_),
        )
        """The plain tuple that kernels take as `walk`."""
        self.batch = (
            np.empty((_BATCH, words), np.uint32),
            np.empty(_BATCH, np.uint64),
            np.empty((_BATCH, 2), np.int64),
            np.empty(_BATCH, np.int64),
        )
        """The same for `batch`."""
        self.tables[2][BUDGET] = budget
        prefetch.add_place(self.tables, *start)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.tables, *self.batch))

    @property
    def budget(self) -> int:
        """How many places may still be looked at."""
        return int(self.tables[2][BUDGET])

    def add(self, configuration: Configuration) -> None:
        """Find one more place."""
        while prefetch.add_place(self.tables, *configuration) < 0:
            self.grow()

    def add_again(self, configuration: Configuration) -> None:
        """Look once more at a place whose row has been made meanwhile."""
        while prefetch.add_again(self.tables, *configuration) < 0:
            self.grow()

    def take(self) -> tuple[RowsAhead, list[Configuration]]:
        """The rows made since the last time, valid until the next call of the kernel, and places without one."""
        places, _, counters, *_ = self.tables
        rows, digests, classes, others = self.batch
        many = counters[ROWS]
        made = RowsAhead(rows[:many], digests[:many].tolist(), classes[: counters[CLASSES]].tolist())
        without = places[others[: counters[OTHERS]], :3].tolist()
        counters[[ROWS, CLASSES, OTHERS]] = 0
        return made, list(map(tuple, without))

    def fit(self, classes: int, frames: int) -> None:
        """Make room for marks of as many classes and frames."""
        *others, looked_at, met = self.tables
        if len(looked_at) < classes or len(met) < frames:
            looked_at, met = (
                np.concatenate([marks, np.zeros(max(many - len(marks), 0), np.bool_)])
                for marks, many in ((looked_at, classes), (met, frames))
            )
            self.tables = (*others, looked_at, met)

    def grow(self) -> None:
        """Make room for as many places again."""
        places, seen, counters, *marks = self.tables
        places = np.concatenate([places, np.empty_like(places)])
        seen = np.full(len(seen) * 2, -1, np.int32)
        prefetch.lay_places(places, seen, counters[FOUND])
        self.tables = (places, seen, counters, *marks)
