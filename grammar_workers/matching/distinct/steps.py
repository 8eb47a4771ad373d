"""Steps of a pushdown automaton with a history: what `matching.kernels.step` does, and which parts begin and end.

A configuration is that of the `PushdownRecognizer` with a history behind it: (state, counter, frame, history).
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.matching.distinct.histories import Histories, History
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.instructions import (
    ACCEPT,
    CALL,
    DISTINCT_ENDLESS,
    DISTINCT_LABELS,
    DISTINCT_NAMES,
    DISTINCT_SITE,
    INSTRUCTION_ENTRY,
    INSTRUCTION_MOVE,
    INSTRUCTION_SITE,
    INSTRUCTION_TARGET,
    OTHERWISE,
    RETURN,
    SILENT_MOVES,
    STATE_EXIT,
    STATE_INSTRUCTION,
    STATE_LITERAL,
    STATE_ROW,
    STAY,
    entered,
    perform,
)

Place: TypeAlias = tuple[int, int, int, History]


class Steps:
    """Steps over one automaton, whose frames are those of `recognizer`."""

    def __init__(
        self, pushdown: PushdownAutomaton, recognizer: PushdownRecognizer, histories: Histories, budget: Budget
    ) -> None:
        self._budget = budget
        self._pushdown = pushdown
        self._histories = histories
        self._push = recognizer.push
        self._frame = functools.lru_cache(maxsize=4096)(recognizer.frame)
        self._state = functools.lru_cache(maxsize=1 << 14)(lambda state: tuple(pushdown.states[state].tolist()))
        self._instruction = functools.lru_cache(maxsize=1 << 14)(lambda n: tuple(pushdown.instructions[n].tolist()))
        self._row = functools.lru_cache(maxsize=1024)(lambda row: pushdown.table[row].tolist())
        self._row_bytes = functools.lru_cache(maxsize=1024)(
            lambda row: frozenset(np.flatnonzero(pushdown.table[row] >= 0).tolist())
        )
        self._distinct = {
            row[DISTINCT_SITE]: (row[DISTINCT_LABELS], bool(row[DISTINCT_NAMES]), bool(row[DISTINCT_ENDLESS]))
            for row in pushdown.distinct.tolist()
        }

    def step(self, place: Place, byte: int) -> Place | None:
        """The place after a byte; None where it is forbidden."""
        self._budget.spend(1)
        state, counter, frame, history = place
        for _ in range(SILENT_MOVES):
            columns = self._state(state)
            target = state + 1 if columns[STATE_LITERAL] == byte else -1
            if target < 0 <= columns[STATE_ROW]:
                target = self._row(columns[STATE_ROW])[byte]
            if target >= 0:
                if history:
                    history = self._histories.read(history, byte, self._frame(frame)[0])
                return self.arrive(target, counter, frame, history)
            behind = self._left((state, counter, frame, history))
            if behind is None:
                return None
            state, counter, frame, history = behind
        return None

    def bytes_at(self, place: Place) -> set[int]:
        """The bytes that may be read here, some of which may still be forbidden."""
        self._budget.spend(1)
        found: set[int] = set()
        behind: Place | None = place
        for _ in range(SILENT_MOVES):
            if behind is None:
                break
            columns = self._state(behind[0])
            if columns[STATE_LITERAL] >= 0:
                found.add(columns[STATE_LITERAL])
            if columns[STATE_ROW] >= 0:
                found |= self._row_bytes(columns[STATE_ROW])
            behind = self._left(behind)
        return found

    def literal_at(self, place: Place) -> int:
        """The byte that leads to the next state, the only one in most names and constants; -1 for none."""
        literal: int = self._state(place[0])[STATE_LITERAL]
        return literal

    def arrive(self, state: int, counter: int, frame: int, history: History) -> Place | None:
        """Follow everything that happens on entering `state` without reading a byte."""
        tables = self._pushdown
        for _ in range(SILENT_MOVES):
            number = self._state(state)[STATE_INSTRUCTION]
            if number == 0:
                return state, counter, frame, history
            instruction = self._instruction(number)
            passed, after, _, _ = perform(tables.instructions, tables.guards, number, counter)
            counter = int(after)
            move = instruction[INSTRUCTION_MOVE]
            if not passed:
                if move != OTHERWISE:
                    return None
                state = instruction[INSTRUCTION_TARGET]
            elif move in (STAY, OTHERWISE):
                return state, counter, frame, history
            elif move == CALL:
                site = instruction[INSTRUCTION_SITE]
                if site in self._distinct:
                    _, name, endless = self._distinct[site]
                    history = self._histories.called(history, self._frame(frame)[0], name=name, endless=endless)
                frame = self._push(frame, site, counter)
                counter = int(entered(counter, instruction[INSTRUCTION_ENTRY]))
                state = instruction[INSTRUCTION_TARGET]
            elif move == RETURN:
                if frame == 0:
                    return ACCEPT, 0, 0, None
                returned = self._returned(frame, instruction[INSTRUCTION_TARGET], history)
                if returned is None:
                    return None
                state, counter, frame, history = returned
            else:
                state = instruction[INSTRUCTION_TARGET]
        return None

    def _left(self, place: Place) -> Place | None:
        """Where the caller goes on when what is read here, which is not self-delimiting, ends; None if it cannot."""
        state, _, frame, history = place
        label = self._state(state)[STATE_EXIT]
        if label < 0 or frame == 0:
            return None
        returned = self._returned(frame, label, history)
        return None if returned is None else self.arrive(*returned)

    def _returned(self, frame: int, label: int, history: History) -> Place | None:
        """The caller of the rule of a frame once it has returned with a label."""
        depth, parent, site, saved = self._frame(frame)
        if history:
            history = self._histories.left(history, depth)
            if site in self._distinct and history is not None and history.depth == depth - 1:
                history = self._histories.returned(history, counts=label < self._distinct[site][0])
                if history is None:
                    return None
        state = int(self._pushdown.returns[site + label])
        return None if state < 0 else (state, saved, parent, history)
