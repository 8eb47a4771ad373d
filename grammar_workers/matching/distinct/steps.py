"""Steps of a pushdown automaton with unique items: each step reads one byte.

A configuration is (state, counter, frame, history). The first three fields are a configuration of `PushdownRecognizer`.
The history has the seen values of the open arrays and objects. Each step records its events (calls and returns of
rules, see `matching.kernels.step`). The events show which items and property names begin and end.
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

# A configuration: (state, counter, frame, history).
HistoryConfiguration: TypeAlias = tuple[int, int, int, History]


class Steps:
    """The step function of one automaton with unique items.

    Args:
        pushdown: The automaton.
        recognizer: Recognizer of the automaton without unique items. It holds the return stacks.
        histories: Operations on the seen values of open containers (arrays and objects).
        budget: Work budget. Each byte costs one step. A method that exhausts it raises LimitExceededError.

    Attributes:
        budget: The argument `budget`.
    """

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
        # Return states of the rules that read parts -> number of labels, DISTINCT_NAMES and DISTINCT_ENDLESS.
        self._distinct = {site: rest for site, *rest in pushdown.distinct.tolist()}

    def step(self, configuration: HistoryConfiguration, byte: int) -> HistoryConfiguration | None:
        """Return the configuration after a byte.

        LimitExceededError is raised if the work budget is exhausted, containers are nested too deep, or the byte causes
        too many calls and returns.

        Args:
            configuration: The configuration (state, counter, frame, history) before the byte.
            byte: The byte, 0 to 255.

        Returns:
            The configuration after the byte. None if the byte is not allowed, or if it completes a value that repeats a
            seen value.
        """
        self.budget.spend(1)
        state, counter, frame, history = configuration
        state, counter, frame, events = self._recognizer.read_byte(state, counter, frame, byte)
        if state < 0:
            return None
        if history and all(event != READ for _, event in events):
            history = self._histories.read(history, byte, self._frame(configuration[2])[0])
        for of, event in events:
            depth, site = self._frame(of)
            if event == READ:
                history = history and self._histories.read(history, byte, depth)
            elif event == CALLED:
                if site in self._distinct:
                    _, name, endless = self._distinct[site]
                    history = self._histories.called(history, depth - 1, name=bool(name), endless=bool(endless))
            elif history:
                history = self._histories.left(history, depth)
                if site in self._distinct and history is not None and history.depth == depth - 1:
                    history = self._histories.returned(history, counts=event < self._distinct[site][0])
                    if history is None:
                        return None
        return state, counter, frame, None if state == code.ACCEPT else history

    def bytes_at(self, configuration: HistoryConfiguration) -> set[int]:
        """Return a superset of the bytes that are allowed in a configuration.

        Args:
            configuration: The configuration (state, counter, frame, history). The history is ignored.
        """
        self.budget.spend(1)
        found: set[int] = set()
        state, counter, frame, _ = configuration
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

    def literal_at(self, configuration: HistoryConfiguration) -> int:
        """Return the byte that leads from the state of a configuration to the state with the next number.

        Inside most property names and constants, this byte is the only allowed byte.

        Args:
            configuration: The configuration (state, counter, frame, history).

        Returns:
            The byte, or -1 if the state reads no such byte.
        """
        literal: int = self._state(configuration[0])[code.STATE_LITERAL]
        return literal
