"""States of a TokenFSM as plain arrays, so that they can advance where no Python runs: on a device.

    class_of   [V]                 tokens that no state tells apart share a class
    next       [states, classes]   the state after a token of that class; -1: forbidden, LEAVES: one that is not here
    row_of     [states]            \\ the mask row of a state; rows are interned by content
    rows       [rows, words]       /

Recursion and counters have no end of states, and some schemas have more than a device should hold: what is here is a
part, closed but for LEAVES. Whoever leaves it asks the TokenFSM, and the next part has more of where they have been.

At 131k tokens a row has 16 KiB, a dense line of `next` would have 512; grammars of a few hundred states have a few
dozen to a few thousand classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import transitions
from grammar_workers.types import NO_STATE, MaskRow, StateId

MAX_CLASSES = 1 << 15
"""Classes fit into int16."""


LEAVES = -2


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTables:
    """The first states of one TokenFSM, by its numbers: `class_of` int16, `next`, `row_of` int32, `rows` uint32.

    `complete`: nothing leaves them.
    """

    class_of: NDArray[np.int16]
    next: NDArray[np.int32]
    row_of: NDArray[np.int32]
    rows: NDArray[np.uint32]
    complete: bool

    @property
    def states(self) -> int:
        return len(self.next)

    @property
    def nbytes(self) -> int:
        return self.class_of.nbytes + self.next.nbytes + self.row_of.nbytes + self.rows.nbytes


class TableBuilder:
    """Collects `next` line by line and splits the classes of tokens as the lines tell them apart."""

    def __init__(self, tokens: int, max_bytes: int) -> None:
        self._class_of = np.zeros(tokens, np.int32)
        self._before = np.empty(tokens, np.int32)
        self._max_bytes = max_bytes
        self._many = 1
        # A token of each class: a column of `next` is that token's.
        self._lines: list[NDArray[np.int32]] = []
        self._row_of: list[int] = []
        self._rows: dict[int, MaskRow] = {}
        self._places: dict[int, int] = {}
        self._origin = np.empty(MAX_CLASSES, np.int32)
        self._pairs = np.empty((MAX_CLASSES, 3), np.int64)
        self._seen = np.empty(MAX_CLASSES * 4, np.int32)

    def add(self, following: NDArray[np.int32], number: int, row: MaskRow) -> bool:
        """The next state's line: the state after each token, int32 [V], and its mask row with the FSM's number of it.

        False, and nothing has changed, when a budget would be exceeded.
        """
        np.copyto(self._before, self._class_of)
        self._seen.fill(-1)
        many = transitions.refine(self._class_of, following, self._many, self._origin, self._pairs, self._seen)
        if (
            many < 0
            or self._nbytes(many, (len(self._rows) + (number not in self._rows)) * row.nbytes) > self._max_bytes
        ):
            np.copyto(self._class_of, self._before)
            return False
        if many > self._many:
            origin = self._origin[: many - self._many]
            self._lines = [np.concatenate([line, line[origin]]) for line in self._lines]
            self._many = many
        line = np.empty(many, np.int32)
        line[self._class_of] = following
        self._lines.append(line)
        self._rows.setdefault(number, row)
        self._row_of.append(self._places.setdefault(number, len(self._places)))
        return True

    def finish(self) -> DeviceTables:
        """The tables of the states added."""
        lines = np.stack(self._lines)
        lines[lines >= len(lines)] = LEAVES
        return DeviceTables(
            self._class_of.astype(np.int16),
            lines,
            np.array(self._row_of, np.int32),
            np.stack(list(self._rows.values())),
            complete=not (lines == LEAVES).any(),
        )

    def _nbytes(self, classes: int, rows_nbytes: int) -> int:
        """Of the tables with one state more."""
        return len(self._class_of) * 2 + (len(self._lines) + 1) * (classes + 1) * 4 + rows_nbytes


def no_tokens(tokens: int) -> NDArray[np.int32]:
    """The line of a state that allows nothing."""
    return np.full(tokens, NO_STATE, np.int32)


def line_of(places: NDArray[np.int32], states: list[StateId]) -> NDArray[np.int32]:
    """The line of a state whose tokens lead to `states[places[token]]`, or LEAVES; place -1 is forbidden."""
    return np.array([*states, NO_STATE], np.int32)[places]
