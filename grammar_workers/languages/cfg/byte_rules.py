"""Conversion of a recursive transition network (one automaton per grammar rule) over characters to one over bytes.

The result is a `RuleGraph`: one table with the states of all rules.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.row_hash import distinct_rows
from grammar_workers.dfa.utf8 import utf8_sequences
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_graph import DEAD, END, RuleGraph
from grammar_workers.memo import memoized

# Inclusive bounds (low, high) of each remaining byte of a character.
_Rest = tuple[tuple[int, int], ...]
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
        self._moves: list[dict[int, int]] = [{}]
        self._final = [0]
        self._calls: list[tuple[int, int, int]] = []
        self._first: dict[int, int] = {}

    def build(self) -> RuleGraph:
        """Return the rule graph: one table with the states of all rules, over the bytes of UTF-8."""
        order = [self._network.start]
        seen = set(order)
        for number in order:
            automaton = self._network.rules[number]
            self._first[number] = len(self._moves)
            for state in range(len(automaton)):
                self._state(final=state in automaton.finals)
            order += [called for called in automaton.calls() if called not in seen]
            seen.update(automaton.calls())
        for number in order:
            self._fill(number)
        return self._graph()

    def _state(self, *, final: bool = False) -> int:
        self._moves.append({})
        self._final.append(int(final))
        self._budget.spend(_ROW_STEPS)
        return len(self._moves) - 1

    def _fill(self, number: int) -> None:
        automaton = self._network.rules[number]
        base = self._first[number]
        for state, moves in enumerate(automaton.edges):
            sequences: list[tuple[_Rest, int]] = []
            for label, target in moves:
                if isinstance(label, int):
                    back = END if automaton.ends(target) else base + target
                    self._calls.append((base + state, self._first[label], back))
                    continue
                # Surrogates, which no charset holds, are what keeps two intervals of "all characters" apart.
                for low, high in charset.intersect(label, charset.ALL):
                    sequences += [(tuple(each), base + target) for each in utf8_sequences(low, high)]
            self._budget.spend(len(sequences))
            self._moves[base + state] = self._after_byte(sequences)

    def _after_byte(self, sequences: Iterable[tuple[_Rest, int]]) -> dict[int, int]:
        by_byte: dict[int, list[tuple[_Rest, int]]] = {}
        for (bounds, *rest), target in sequences:
            for byte in range(bounds[0], bounds[1] + 1):
                by_byte.setdefault(byte, []).append((tuple(rest), target))
        return {
            byte: options[0][1] if not options[0][0] else self._middle(tuple(options))
            for byte, options in by_byte.items()
        }

    @memoized
    def _middle(self, options: tuple[tuple[_Rest, int], ...]) -> int:
        """Return the state inside a character, in which the remaining bytes of one of `options` follow."""
        state = self._state()
        self._moves[state] = self._after_byte(options)
        return state

    def _graph(self) -> RuleGraph:
        rows: dict[bytes, int] = {}
        row_of = []
        for moves in self._moves:
            row = np.full(256, DEAD, np.int32)
            row[list(moves)] = list(moves.values())
            row_of.append(rows.setdefault(row.tobytes(), len(rows)))
        table = np.frombuffer(b"".join(rows), np.int32).reshape(-1, 256)
        classes, firsts = distinct_rows(np.array(table.T, order="C"))
        return RuleGraph(
            classes=classes.astype(np.uint8),
            rows=np.ascontiguousarray(table[:, firsts]),
            row_of=np.array(row_of, np.int32),
            final=np.array(self._final, np.uint8),
            calls=np.array(sorted(self._calls), np.int32).reshape(-1, 3),
            first=self._first[self._network.start],
        )
