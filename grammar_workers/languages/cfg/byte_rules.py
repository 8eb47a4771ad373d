"""Conversion of a recursive transition network (one automaton per grammar rule) over characters to one over bytes.

The result is a `RuleGraph`: one table with the states of all rules.
"""

from __future__ import annotations

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.reached import reached
from grammar_workers.dfa.row_hash import distinct_rows
from grammar_workers.dfa.utf8 import Bytes, shape_of
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_graph import DEAD, END, RuleGraph
from grammar_workers.memo import memoized

_NO_MOVES = np.full(256, DEAD, np.int32)
# Budget steps of one state (one row of the table).
_ROW_STEPS = 32


class ByteRules:
    """Builder of the `RuleGraph` of a grammar: the states of all rules over bytes in one table. Call `build` once.

    Only rules that the start rule can call are contained. States with equal moves share a row of the table, and bytes
    that no state distinguishes share a column.

    Args:
        network: The rules of the grammar as automata over characters. No called rule may match the empty text, and no
            rule may begin with itself.
        budget: Counts the steps of work. An exhausted budget raises LimitExceededError.
    """

    def __init__(self, network: TransitionNetwork, budget: Budget) -> None:
        self._network = network
        self._budget = budget
        # For each state the next state after each byte, -1 for none, int32 [256].
        self._rows = [_NO_MOVES]
        self._final = [0]
        self._calls: list[tuple[int, int, int]] = []
        self._first: dict[int, int] = {}

    def build(self) -> RuleGraph:
        """Return the rule graph: one table with the states of all rules, over the bytes of UTF-8."""
        order = reached([self._network.start], lambda number: self._network.rules[number].calls())
        for number in order:
            automaton = self._network.rules[number]
            self._first[number] = len(self._rows)
            for state in range(len(automaton)):
                self._state(final=state in automaton.finals)
        for number in order:
            self._fill(number)
        return self._graph()

    def _state(self, *, final: bool = False) -> int:
        self._rows.append(_NO_MOVES)
        self._final.append(int(final))
        self._budget.spend(_ROW_STEPS)
        return len(self._rows) - 1

    def _fill(self, number: int) -> None:
        automaton = self._network.rules[number]
        base = self._first[number]
        for state, moves in enumerate(automaton.edges, base):
            ranges: list[tuple[int, int, int]] = []
            for label, target in moves:
                if isinstance(label, int):
                    back = END if automaton.ends(target) else base + target
                    self._calls.append((state, self._first[label], back))
                    continue
                # Surrogates, which no charset holds, are what keeps two intervals of "all characters" apart.
                ranges += [(low, high, base + target) for low, high in charset.intersect(label, charset.ALL)]
            targets, shape = shape_of(ranges)
            self._budget.spend(len(shape.bytes.sequences))
            self._rows[state] = shape.bytes.row(targets, self._inside)

    @memoized
    def _inside(self, rest: Bytes, targets: tuple[int, ...]) -> int:
        """Return the state inside a character, in which the bytes `rest` follow and lead to `targets`."""
        state = self._state()
        self._rows[state] = rest.row(targets, self._inside)
        return state

    def _graph(self) -> RuleGraph:
        dense = np.array(self._rows)
        row_of, firsts = distinct_rows(dense)
        table = dense[firsts]
        classes, firsts = distinct_rows(np.ascontiguousarray(table.T))
        return RuleGraph(
            classes=classes.astype(np.uint8),
            rows=np.ascontiguousarray(table[:, firsts]),
            row_of=row_of,
            final=np.array(self._final, np.uint8),
            calls=np.array(sorted(self._calls), np.int32).reshape(-1, 3),
            first=self._first[self._network.start],
        )
