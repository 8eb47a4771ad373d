"""The builder that lays out the tables of a `Machine`, and pieces of what it holds for other builders."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.errors import LimitExceededError
from grammar_workers.kernels import (
    ASSIGN,
    CALL,
    ENTER_AT_ZERO,
    GOTO,
    INCREMENT,
    INHERIT,
    KEEP,
    OTHERWISE,
    RETURN,
    SET_BIT,
    STAY,
)
from grammar_workers.machine import Guard, Interval, Machine
from grammar_workers.numbered_rows import distinct_rows
from grammar_workers.options import Limits

_ROW_STEPS = 32
"""What a dense row counts against the budget."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one builder holds, for other builders to take in: columns of states, rows, ops and loops by their numbers.

    States are numbered as in that builder.
    """

    literals: array[int]
    exits: array[int]
    row_of: NDArray[np.int64]
    op_of: NDArray[np.int64]
    loop_of: NDArray[np.int64]
    rows: NDArray[np.int32]
    ops: list[_Op]
    loops: list[tuple[int, int, int]]
    labels: int
    steps: int

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + 64 * len(self.literals) + 256 * len(self.ops)


_Op: TypeAlias = tuple[Guard, int, int, int, int, tuple[int, ...], int]
"""(guard, action, value, move, target, site, enter); a plain tuple, because there are many."""
_OP_FIELDS = 8
_NONE, _ZERO = array("i", [-1]).tobytes(), array("i", [0]).tobytes()
_NO_MOVES = np.full(256, -1, np.int32)


def no_moves() -> NDArray[np.int32]:
    """A dense row in which no byte leads anywhere, int32 [256]."""
    return _NO_MOVES.copy()


class MachineBuilder:
    """Lays out states, rows and ops. State numbers are final when handed out; contents may be filled in later."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most_states = limits.max_states
        self._steps = 0
        # One array of 32-bit integers per column: appending and extending these is the fast path of compilation.
        self._lit = array("i", [-1, -1])
        self._row = array("i", [-1, -1])
        self._exit = array("i", [-1, -1])
        self._op = array("i", [0, 0])
        self._loop = array("i", [0, 0])
        self._rows: list[bytes] = []
        self._row_ids: dict[bytes, int] = {}
        self._ops = array("i", [0] * _OP_FIELDS)
        self._op_ids: dict[_Op, int] = {}
        self._guards: list[Interval] = []
        self._guard_ids: dict[tuple[Interval, ...], tuple[int, int]] = {(): (0, 0)}
        self._returns = array("i")
        self._site_ids: dict[tuple[int, ...], int] = {}
        self._labels = 1
        self._loops: list[tuple[int, int, int]] = [(0, 0, -1)]
        self._token_edges: list[tuple[int, int, int]] = []
        self._loop_ids: dict[tuple[int, int, int], int] = {}

    # -- budget --------------------------------------------------------------------------------------------------

    def spend(self, steps: int) -> None:
        """Count construction steps against the budget; raises LimitExceededError."""
        self._steps += steps
        if self._steps > self.limits.max_steps:
            raise LimitExceededError(f"compiling takes more than {self.limits.max_steps} steps (limit max_steps)")

    # -- states --------------------------------------------------------------------------------------------------

    @property
    def next_state(self) -> int:
        """The number that the next new state gets (what a literal state leads to)."""
        return len(self._lit)

    def state(self, *, lit: int = -1, row: int = -1, exit_label: int = -1, op: int = 0, loop: int = 0) -> int:
        """Append one state and return its number. `lit` leads to the state appended right after it."""
        number = len(self._lit)
        self._lit.append(lit)
        self._row.append(row)
        self._exit.append(exit_label)
        self._op.append(op)
        self._loop.append(loop)
        if number >= self._most_states:
            self._check_states()
        return number

    def states(self, *, rows: Sequence[int], exit_labels: Sequence[int], ops: Sequence[int]) -> int:
        """Append so many states without literals and loops at once; returns the first."""
        first = self.empty_states(len(rows))
        self._row[first:] = array("i", rows)
        self._exit[first:] = array("i", exit_labels)
        self._op[first:] = array("i", ops)
        return first

    def empty_states(self, many: int) -> int:
        """Append so many empty states; returns the first."""
        first = len(self._lit)
        for column in (self._lit, self._row, self._exit):
            column.frombytes(_NONE * many)
        for column in (self._op, self._loop):
            column.frombytes(_ZERO * many)
        self._check_states()
        return first

    def _check_states(self) -> None:
        if len(self._lit) > self._most_states:
            raise LimitExceededError(f"the automaton has more than {self._most_states} states (limit max_states)")

    def literal(self, data: bytes, row: int = -1, op: int = 0, loop: int = 0) -> int:
        """Append a chain that reads `data` and ends at the next state appended; returns its first state.

        `op` runs on entering the chain; `row` is where every byte of the chain goes that is not the literal one, `loop`
        what each of its states resembles.
        """
        first = len(self._lit)
        many = len(data)
        self._lit.extend(data)
        self._row.frombytes(_NONE * many if row == -1 else array("i", [row]).tobytes() * many)
        self._exit.frombytes(_NONE * many)
        self._op.append(op)
        self._op.frombytes(_ZERO * (many - 1))
        self._loop.frombytes(array("i", [loop]).tobytes() * many)
        self._check_states()
        return first

    def fill(self, state: int, *, row: int = -1, op: int = 0, exit_label: int = -1, loop: int = 0) -> None:
        """Give a state that was appended empty its row, op, exit label and loop."""
        self._row[state] = row
        self._op[state] = op
        self._exit[state] = exit_label
        self._loop[state] = loop

    def fill_states(self, first: int, *, rows: Sequence[int], ops: Sequence[int], loops: Sequence[int]) -> None:
        """The same for states that were appended one after the other; they carry no exit label."""
        end = first + len(rows)
        self._row[first:end] = array("i", rows)
        self._op[first:end] = array("i", ops)
        self._loop[first:end] = array("i", loops)

    def set_op(self, state: int, op: int) -> None:
        self._op[state] = op

    def op_of(self, state: int) -> int:
        return self._op[state]

    def row_of(self, state: int) -> int:
        return self._row[state]

    def token_edge(self, state: int, token: int, target: int) -> None:
        """Let a token, whatever its bytes, lead from `state` to `target`, wherever a token may begin in `state`."""
        self._token_edges.append((state, token, target))

    # -- tables --------------------------------------------------------------------------------------------------

    def row(self, targets: dict[int, int] | NDArray[np.int32]) -> int:
        """The number of a dense row: byte -> state. Equal rows share one number."""
        if isinstance(targets, dict):
            dense = no_moves()
            for byte, target in targets.items():
                dense[byte] = target
        else:
            dense = targets
        return self._row_of_bytes(dense.tobytes())

    def rows(self, dense: NDArray[np.int32]) -> list[int]:
        """The numbers of dense rows, int32 [n, 256]."""
        content = dense.tobytes()
        return [self._row_of_bytes(content[place : place + 1024]) for place in range(0, len(content), 1024)]

    def _row_of_bytes(self, content: bytes) -> int:
        number = self._row_ids.get(content)
        if number is None:
            number = self._row_ids[content] = len(self._rows)
            self._rows.append(content)
            self.spend(_ROW_STEPS)
        return number

    def row_targets(self, row: int) -> NDArray[np.int32]:
        """A writable copy of a dense row, int32 [256]."""
        return np.frombuffer(self._rows[row], np.int32).copy()

    def loop(self, minimum: int = 0, maximum: int = -1, base: int = -1) -> int:
        """The number of a free-string loop: `minimum` to `maximum` characters (-1: no maximum); see `fill_row`."""
        number = self._loop_ids.get((minimum, maximum, base))
        if number is None:
            number = self._loop_ids[minimum, maximum, base] = len(self._loops)
            self._loops.append((minimum, maximum, base))
        return number

    def op(
        self,
        *,
        guard: Iterable[Interval] = (),
        increment_to: int | None = None,
        assign: int | None = None,
        set_bit: int | None = None,
        move: int = STAY,
        target: int = 0,
        site: Sequence[int] = (),
        enter: int = ENTER_AT_ZERO,
    ) -> int:
        """The number of an op. `site` lists the return state per label of a CALL, `enter` its register there."""
        intervals = tuple(guard)
        action, value = KEEP, 0
        if increment_to is not None:
            action, value = INCREMENT, increment_to
        elif assign is not None:
            action, value = ASSIGN, assign
        elif set_bit is not None:
            action, value = SET_BIT, set_bit
        return self._number_of((intervals, action, value, move, target, tuple(site), enter))

    def _number_of(self, op: _Op) -> int:
        number = self._op_ids.get(op)
        if number is None:
            number = self._op_ids[op] = len(self._ops) // _OP_FIELDS
            guard, action, value, move, target, site, enter = op
            base = self._site(site) if move == CALL else 0
            self._ops.extend((*self._guard_span(guard), action, value, move, target, base, enter))
        return number

    def call(
        self, rule: int, site: Sequence[int], *, guard: Iterable[Interval] = (), enter: int = ENTER_AT_ZERO
    ) -> int:
        return self._number_of((tuple(guard), KEEP, 0, CALL, rule, tuple(site), enter))

    def calls(
        self, rules: NDArray[np.int64], sites: NDArray[np.int32], guards: Sequence[Guard], guard_of: NDArray[np.int64]
    ) -> int:
        """Append states that call `rules[i]` with the register as it is while `guards[guard_of[i]]` holds; returns the
        first. `sites` int32 [calls, labels]. What exists already is not looked for.
        """
        numbers, firsts = distinct_rows(sites)
        bases = len(self._returns) + sites.shape[1] * numbers
        self._returns.frombytes(sites[firsts].tobytes())
        first_op = len(self._ops) // _OP_FIELDS
        ops = np.zeros((len(rules), _OP_FIELDS), np.int32)
        ops[:, :2] = np.array([self._guard_span(guard) for guard in guards])[guard_of]
        ops[:, 2:] = (KEEP, 0, CALL, 0, 0, INHERIT)
        ops[:, 5] = rules
        ops[:, 6] = bases
        self._ops.frombytes(ops.tobytes())
        first = self.empty_states(len(rules))
        self._op[first:] = array("i", range(first_op, first_op + len(rules)))
        return first

    def return_(self, label: int = 0, *, guard: Iterable[Interval] = ()) -> int:
        self._labels = max(self._labels, label + 1)
        return self._number_of((tuple(guard), KEEP, 0, RETURN, label, (), ENTER_AT_ZERO))

    def goto(self, target: int, *, guard: Iterable[Interval] = (), assign: int | None = None) -> int:
        return self.op(move=GOTO, target=target, guard=guard, assign=assign)

    def otherwise(
        self, target: int, *, guard: Iterable[Interval], increment_to: int | None = None, assign: int | None = None
    ) -> int:
        """The op of a state that is entered (and counts) while `guard` holds, and else sends on to `target`."""
        return self.op(move=OTHERWISE, target=target, guard=guard, increment_to=increment_to, assign=assign)

    def _guard_span(self, intervals: tuple[Interval, ...]) -> tuple[int, int]:
        span = self._guard_ids.get(intervals)
        if span is None:
            start = len(self._guards)
            self._guards.extend(intervals)
            span = self._guard_ids[intervals] = (start, len(self._guards))
        return span

    def _site(self, states: tuple[int, ...]) -> int:
        base = self._site_ids.get(states)
        if base is None:
            base = self._site_ids[states] = len(self._returns)
            self._returns.extend(states)
        return base

    # -- pieces --------------------------------------------------------------------------------------------------

    def piece(self) -> Piece:
        """Everything laid out so far but the two states that every machine begins with; no calls made in bulk."""
        assert len(self._op_ids) == len(self._ops) // _OP_FIELDS - 1
        return Piece(
            self._lit[2:],
            self._exit[2:],
            np.array(self._row[2:], np.int64),
            np.array(self._op[2:], np.int64),
            np.array(self._loop[2:], np.int64),
            np.frombuffer(b"".join(self._rows), np.int32).reshape(-1, 256),
            list(self._op_ids),
            self._loops[1:],
            self._labels,
            self._steps - _ROW_STEPS * len(self._rows),
        )

    def insert(self, piece: Piece) -> int:
        """Append a piece; its states get the numbers that they had plus the one returned. Its loops have no base."""
        offset = len(self._lit) - 2
        row_numbers = self.rows(np.where(piece.rows >= 0, piece.rows + np.int32(offset), piece.rows))
        op_numbers = [0]
        for guard, action, value, move, target, site, enter in piece.ops:
            if move in (CALL, GOTO, OTHERWISE):
                target += offset
                site = tuple([state + offset if state >= 0 else -1 for state in site])
            op_numbers.append(self._number_of((guard, action, value, move, target, site, enter)))
        loop_numbers = [0, *(self.loop(*loop) for loop in piece.loops)]
        self._lit += piece.literals
        self._exit += piece.exits
        # The last entry stands for the row -1.
        self._row.frombytes(np.array([*row_numbers, -1], np.int32)[piece.row_of].tobytes())
        self._op.frombytes(np.array(op_numbers, np.int32)[piece.op_of].tobytes())
        self._loop.frombytes(np.array(loop_numbers, np.int32)[piece.loop_of].tobytes())
        self._labels = max(self._labels, piece.labels)
        self._check_states()
        self.spend(piece.steps)
        return offset

    # -- result --------------------------------------------------------------------------------------------------

    def note_label(self, label: int) -> None:
        """Tell that `label` is used as an exit label, so that every return site has room for it."""
        self._labels = max(self._labels, label + 1)

    def build(self, entry: int) -> Machine:
        """The finished machine, beginning at `entry`."""
        self._op[1] = self.goto(entry)
        states = np.empty((len(self._lit), 5), np.int32)
        for column, values in enumerate((self._lit, self._row, self._exit, self._op, self._loop)):
            states[:, column] = np.frombuffer(values, np.int32)
        table = np.frombuffer(b"".join(self._rows), np.int32).reshape(-1, 256)
        returns = self._returns + array("i", [-1]) * self._labels
        return Machine(
            states=states,
            table=table.copy(),
            ops=np.array(self._ops, np.int32).reshape(-1, _OP_FIELDS),
            guards=np.array(self._guards, np.int32).reshape(-1, 2),
            returns=np.array(returns, np.int32),
            loops=np.array(self._loops, np.int32).reshape(-1, 3),
            token_edges=np.array(self._token_edges, np.int32).reshape(-1, 3),
        )
