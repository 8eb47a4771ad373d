"""Steps of a pushdown automaton with a history: those of `matching.kernels.step`, whose events tell which parts begin
and end.

A configuration is that of the `PushdownRecognizer` with a history behind it: (state, counter, frame, history).
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.matching.distinct.histories import Histories, History
from grammar_workers.matching.kernels.step import CALLED, READ
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton

Place: TypeAlias = tuple[int, int, int, History]


class Steps:
    """Steps over one automaton, whose frames are those of `recognizer`."""

    def __init__(
        self, pushdown: PushdownAutomaton, recognizer: PushdownRecognizer, histories: Histories, budget: Budget
    ) -> None:
        self.budget = budget
        self._histories = histories
        self._recognizer = recognizer
        self._frame = functools.lru_cache(maxsize=4096)(recognizer.frame)
        self._state = functools.lru_cache(maxsize=1 << 14)(lambda state: tuple(pushdown.states[state].tolist()))
        self._row_bytes = functools.lru_cache(maxsize=1024)(
            lambda row: frozenset(np.flatnonzero(pushdown.table[row] >= 0).tolist())
        )
        self._distinct = {
            row[code.DISTINCT_SITE]: (
                row[code.DISTINCT_LABELS],
                bool(row[code.DISTINCT_NAMES]),
                bool(row[code.DISTINCT_ENDLESS]),
            )
            for row in pushdown.distinct.tolist()
        }

    def step(self, place: Place, byte: int) -> Place | None:
        """The place after a byte; None where it is forbidden."""
        self.budget.spend(1)
        state, counter, frame, history = place
        state, counter, frame, events = self._recognizer.read_byte(state, counter, frame, byte)
        if state < 0:
            return None
        if history and all(event != READ for _, event in events):
            history = self._histories.read(history, byte, self._frame(place[2])[0])
        for of, event in events:
            depth, site = self._frame(of)
            if event == READ:
                history = history and self._histories.read(history, byte, depth)
            elif event == CALLED:
                if site in self._distinct:
                    _, name, endless = self._distinct[site]
                    history = self._histories.called(history, depth - 1, name=name, endless=endless)
            elif history:
                history = self._histories.left(history, depth)
                if site in self._distinct and history is not None and history.depth == depth - 1:
                    history = self._histories.returned(history, counts=event < self._distinct[site][0])
                    if history is None:
                        return None
        return state, counter, frame, None if state == code.ACCEPT else history

    def bytes_at(self, place: Place) -> set[int]:
        """The bytes that may be read here, some of which may still be forbidden."""
        self.budget.spend(1)
        found: set[int] = set()
        state, counter, frame, _ = place
        for _ in range(code.SILENT_MOVES):
            columns = self._state(state)
            if columns[code.STATE_LITERAL] >= 0:
                found.add(columns[code.STATE_LITERAL])
            if columns[code.STATE_ROW] >= 0:
                found |= self._row_bytes(columns[code.STATE_ROW])
            if columns[code.STATE_EXIT] < 0:
                break
            state, counter, frame = self._recognizer.leave((state, counter, frame))
            if state < 0:
                break
        return found

    def literal_at(self, place: Place) -> int:
        """The byte that leads to the next state, the only one in most names and constants; -1 for none."""
        literal: int = self._state(place[0])[code.STATE_LITERAL]
        return literal
