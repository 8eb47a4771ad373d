"""The byte automaton of a recursive grammar: states of all rules in one table, with calls between rules.

    list: "[" (item ("," item)*)? "]"        item: list | "x"

    list  1 -'['-> 2;  2 -']'-> 4;  2 calls item, returns to 3;  3 -','-> 5;  3 -']'-> 4;  5 calls item, ...;  4 final
    item  6 -'x'-> 7;  6 calls list, returns to 0 (nothing is left to do in item: no return address is kept);  7 final

Unlike a `PushdownAutomaton` it may be ambiguous: a state may move on a byte, call several rules and be final, all at
once. So what has been read is a *set* of stacks (`stacks`). No called rule matches the empty text and no rule calls
itself before its first byte, so following calls always comes to an end.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

DEAD = -1
END = 0
"""The state below all stacks: everything has been read."""

_HEADER = 6
"""Integers before the arrays: states, rows, classes, calls, the first state, and one that is reserved (0)."""


@dataclasses.dataclass(frozen=True)
class RuleGraph:
    """`classes` uint8 [256]: the column of each byte. `rows` int32 [r, columns]: target states or -1; `row_of` int32
    [states]. `final` uint8 [states]: the rule may end here.
    `calls` int32 [k, 3], sorted: calling state, first state of the rule, state to return to (0: straight to the
    caller). State 0 is END; reading begins in state `first`.
    """

    classes: NDArray[np.uint8]
    rows: NDArray[np.int32]
    row_of: NDArray[np.int32]
    final: NDArray[np.uint8]
    calls: NDArray[np.int32]
    first: int

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.classes, self.rows, self.row_of, self.final, self.calls))

    def to_bytes(self) -> bytes:
        """The sizes (int64), then the arrays, little-endian."""
        sizes = [len(self.row_of), *self.rows.shape, len(self.calls), self.first, 0]
        head = np.array(sizes, "<i8").tobytes()
        wide = [each.astype("<i4").tobytes() for each in (self.rows, self.row_of, self.calls)]
        return b"".join([head, self.classes.tobytes(), self.final.tobytes(), *wide])

    @classmethod
    def from_bytes(cls, data: bytes) -> RuleGraph:
        """The inverse of `to_bytes`. Trusts nothing: raises ValueError unless it is a graph that can be walked."""
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
        """Raise ValueError unless every index fits, nothing is called for ever, and every state can come to an end."""
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
        """State -> bytes of the shortest way to the end of its rule, and its first step.

        The step is () at the end, (byte, state) or (0, first state of a called rule, state to return to). Knuth's
        generalisation of Dijkstra's algorithm (1977); states from which no end can be reached are absent.
        """
        # Who may get a shorter way when `state` gets one: (source, step).
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
