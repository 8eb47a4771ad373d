"""Byte automaton of a recursive grammar: the states of all rules in one table, with calls between rules.

    list: "[" (item ("," item)*)? "]"        item: list | "x"

    list  1 -'['-> 2;  2 -']'-> 4;  2 calls item, returns to 3;  3 -','-> 5;  3 -']'-> 4;  5 calls item, ...;  4 final
    item  6 -'x'-> 7;  6 calls list, returns to 0 (a tail call: no return state is pushed);  7 final

A rule graph may be ambiguous: one state may move on a byte, call several rules and also be final. So the recognizer's
state after a text is a *set* of stacks (module `stacks`). No called rule matches the empty text, and no rule calls
itself before its first byte. So only finitely many calls follow each other without a byte between them.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

# The target of a missing move.
DEAD = -1
# The state at the bottom of all stacks: the whole text has been read.
END = 0

# Number of integers before the arrays: states, rows, columns, calls, the first state, and a reserved one (0).
_HEADER = 6


@dataclasses.dataclass(frozen=True)
class RuleGraph:
    """Byte automaton of a recursive grammar: the states of all rules in one table, with calls between rules.

    Bytes that no state distinguishes share a column of the table. States with equal moves share a row. State 0 is END:
    the whole text has been read.

    Attributes:
        classes: Column of each byte, uint8 [256].
        rows: Next state for each row and column, int32 [rows, columns]; -1 if the byte cannot follow.
        row_of: Row of each state, int32 [states].
        final: 1 for each state in which its rule may end, else 0, uint8 [states].
        calls: One row per call, int32 [calls, 3], sorted: calling state, first state of the called rule, and state in
            which the caller continues. 0 in the last column is a tail call: the caller ends with the called rule.
        first: State in which reading begins.
    """

    classes: NDArray[np.uint8]
    rows: NDArray[np.int32]
    row_of: NDArray[np.int32]
    final: NDArray[np.uint8]
    calls: NDArray[np.int32]
    first: int

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(each.nbytes for each in (self.classes, self.rows, self.row_of, self.final, self.calls))

    def to_bytes(self) -> bytes:
        """Serialize the graph for `from_bytes`: six int64 integers and then the arrays, all little-endian."""
        sizes = [len(self.row_of), *self.rows.shape, len(self.calls), self.first, 0]
        head = np.array(sizes, "<i8").tobytes()
        wide = [each.astype("<i4").tobytes() for each in (self.rows, self.row_of, self.calls)]
        return b"".join([head, self.classes.tobytes(), self.final.tobytes(), *wide])

    @classmethod
    def from_bytes(cls, data: bytes) -> RuleGraph:
        """Deserialize and validate a graph. Malformed data raises ValueError.

        Args:
            data: Bytes in the format of `to_bytes`.

        Returns:
            The graph. Its arrays do not share memory with `data`.
        """
        _require(len(data) >= 8 * _HEADER, "truncated")
        states, rows, columns, calls, first, reserved = np.frombuffer(data, "<i8", _HEADER).tolist()
        _require(0 < states < 1 << 31 and 0 < rows < 1 << 31 and 0 < columns <= 256, "sizes")
        _require(0 <= calls < 1 << 31 and 0 < first < states and reserved == 0, "sizes")
        size = 8 * _HEADER + 256 + states + 4 * (rows * columns + states + 3 * calls)
        _require(len(data) == size, "length")
        position = 8 * _HEADER

        def take(kind: str, count: int) -> NDArray[np.generic]:
            nonlocal position
            array = np.frombuffer(data, kind, count, position)
            position += array.nbytes
            return array

        graph = cls(
            classes=take("u1", 256).astype(np.uint8),
            final=take("u1", states).astype(np.uint8),
            rows=take("<i4", rows * columns).astype(np.int32).reshape(rows, columns),
            row_of=take("<i4", states).astype(np.int32),
            calls=take("<i4", 3 * calls).astype(np.int32).reshape(calls, 3),
            first=first,
        )
        graph.validate()
        return graph

    def validate(self) -> None:
        """Check the invariants of the graph.

        Raises:
            ValueError: An index is out of range, calls form a cycle, a called rule may match the empty text, or the end
                of a rule cannot be reached from one of its states.
        """
        states, columns = len(self.row_of), self.rows.shape[1]
        _require(int(self.classes.max()) < columns, "classes")
        _require(int(self.rows.min()) >= DEAD and int(self.rows.max()) < states, "rows")
        _require(int(self.row_of.min()) >= 0 and int(self.row_of.max()) < len(self.rows), "row numbers")
        _require(int(self.final.max()) <= 1, "flags")
        _require(not self.final[END] and bool((self.rows[self.row_of[END]] == DEAD).all()), "the end")
        _require(bool((self.rows != END).all()), "moves to the end")
        if len(self.calls):
            callers, called, returns = self.calls.T
            _require(bool(((callers > 0) & (callers < states) & (called > 0) & (called < states)).all()), "calls")
            _require(bool(((returns >= 0) & (returns < states)).all()), "returns")
            _require(not self.final[called].any(), "a called rule that may be empty")
            _require(bool((callers != called).all()), "a call of itself")
            order = TopologicalSorter[int]()
            for caller, first in zip(callers.tolist(), called.tolist(), strict=True):
                order.add(caller, first)
            try:
                order.prepare()
            except CycleError:
                raise ValueError("malformed rule graph: calls in a circle") from None
        _require(len(self.endings) == states, "a state without an end")

    @functools.cached_property
    def endings(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Length and first step of the shortest path from each state to the end of its rule.

        Each key is a state. Each value is a pair: the number of bytes on the path, and its first step. The step is

        - () in a final state,
        - (byte, next state) to read a byte,
        - (0, first state of the called rule, state after the call) to call a rule.

        States from which their rule cannot end are absent. The algorithm is Dijkstra's, as Knuth generalized it (1977).
        """
        # For each state, the (source, step) pairs whose cost can be computed once the cost of the state is known.
        users: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        byte_of = {int(column): byte for byte, column in reversed(list(enumerate(self.classes.tolist())))}
        steps_of_row: list[list[tuple[int, int]]] = []
        for row in self.rows.tolist():
            columns: dict[int, int] = {}
            for column, target in enumerate(row):
                if target != DEAD and column in byte_of:
                    columns.setdefault(target, byte_of[column])
            steps_of_row.append(list(columns.items()))
        for state, row in enumerate(self.row_of.tolist()):
            for target, byte in steps_of_row[row]:
                users.setdefault(target, []).append((state, (byte, target)))
        for caller, first, back in self.calls.tolist():
            users.setdefault(first, []).append((caller, (0, first, back)))
            if back != END:
                users.setdefault(back, []).append((caller, (0, first, back)))
        done: dict[int, tuple[int, tuple[int, ...]]] = {}
        queue: list[tuple[int, int, tuple[int, ...]]] = [(0, END, ())]
        queue += [(0, state, ()) for state in np.flatnonzero(self.final).tolist()]
        heapq.heapify(queue)
        while queue:
            cost, state, step = heapq.heappop(queue)
            if state in done:
                continue
            done[state] = (cost, step)
            for user, using in users.get(state, ()):
                if user in done:
                    continue
                if len(using) == 2:
                    heapq.heappush(queue, (1 + cost, user, using))
                elif using[1] in done and using[2] in done:
                    heapq.heappush(queue, (done[using[1]][0] + done[using[2]][0], user, using))
        return done


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"malformed rule graph: {what}")
