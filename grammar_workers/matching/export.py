"""A finite TokenFSM as plain arrays, so that its states can advance where no Python runs: on a device.

    class_of   [V]                 tokens that no state tells apart share a class
    next       [states, classes]   the state after a token of that class, -1: forbidden
    row_of     [states]            \\ the mask row of a state; rows are interned by content
    rows       [rows, words]       /

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


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTables:
    """The states of one TokenFSM, under its own numbers: `class_of` int16, `next` and `row_of` int32, `rows` uint32."""

    class_of: NDArray[np.int16]
    next: NDArray[np.int32]
    row_of: NDArray[np.int32]
    rows: NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        return self.class_of.nbytes + self.next.nbytes + self.row_of.nbytes + self.rows.nbytes


class TableBuilder:
    """Collects `next` line by line and splits the classes of tokens as the lines tell them apart."""

    def __init__(self, tokens: int, max_bytes: int) -> None:
        self._class_of = np.zeros(tokens, np.int32)
        self._max_bytes = max_bytes
        self._many = 1
        # A token of each class: a column of `next` is that token's.
        self._lines: list[NDArray[np.int32]] = []
        self._origin = np.empty(MAX_CLASSES, np.int32)
        self._pairs = np.empty((MAX_CLASSES, 3), np.int64)
        self._seen = np.empty(MAX_CLASSES * 4, np.int32)

    def add(self, following: NDArray[np.int32]) -> bool:
        """The next state's line: the state after each token, int32 [V]. False when a budget is exceeded."""
        self._seen.fill(-1)
        many = transitions.refine(self._class_of, following, self._many, self._origin, self._pairs, self._seen)
        if many < 0 or (len(self._lines) + 1) * many * 4 > self._max_bytes:
            return False
        if many > self._many:
            origin = self._origin[: many - self._many]
            self._lines = [np.concatenate([line, line[origin]]) for line in self._lines]
            self._many = many
        line = np.empty(many, np.int32)
        line[self._class_of] = following
        self._lines.append(line)
        return True

    def finish(self, row_of: list[int], rows: list[MaskRow]) -> DeviceTables | None:
        """The tables; None when they exceed the budget with their rows."""
        tables = DeviceTables(
            self._class_of.astype(np.int16), np.stack(self._lines), np.array(row_of, np.int32), np.stack(rows)
        )
        return tables if tables.nbytes <= self._max_bytes else None


def no_tokens(tokens: int) -> NDArray[np.int32]:
    """The line of a state that allows nothing."""
    return np.full(tokens, NO_STATE, np.int32)


def line_of(places: NDArray[np.int32], states: list[StateId]) -> NDArray[np.int32]:
    """The line of a state whose tokens lead to `states[places[token]]`; place -1 is forbidden."""
    return np.array([*states, NO_STATE], np.int32)[places]
