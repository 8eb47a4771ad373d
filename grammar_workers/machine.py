"""The byte automaton: flat tables of rules with call edges, and the builder that lays them out.

A machine reads bytes. Each state reads one byte by `LIT` (this very byte leads to the next state) or by a row of the
dense table. Entering a state may run an *op*: check a guard on the register, count, call a rule, return from one, or go
on to another state. For `{"a": [1, 2]}` with `{"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}`:

    object rule   '{' -> '"' 'a' '"' ':' ' ' -> CALL array, return to A;   A: ',' -> ...   '}' -> RETURN
    array rule    '[' -> CALL integer, return to B;   B: ',' ' ' -> CALL integer, return to B;   ']' -> RETURN
    integer rule  '1' -> D;   D: digit -> D, anything else -> return to B and read it there (EXIT)

Recursion is a rule that calls itself; the return stack is part of the configuration (see `kernels`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.errors import LimitExceededError
from grammar_workers.kernels import (
    ADVICE,
    ALL_SET,
    ASSIGN,
    CALL,
    ENTER_AT_ZERO,
    GOTO,
    HALF,
    INCREMENT,
    INHERIT,
    KEEP,
    OTHERWISE,
    RETURN,
    SET_BIT,
    SOME_CLEAR,
    STAY,
    TOLERATES_UNESCAPED,
)
from grammar_workers.options import Limits

Interval = tuple[int, int]
"""Inclusive bounds of register values."""

UNBOUNDED = 2**31 - 1
Guard = tuple[Interval, ...]
"""Sorted, disjoint intervals one of which holds the register, () for no condition, or a guard over bits (see below)."""
NEVER: Guard = ((-1, -1),)
"""A guard that no register passes."""
REGISTER_BITS = 2 * HALF
"""How many flags a register holds."""

_SHAPES = {"states": 5, "table": 256, "ops": 8, "guards": 2, "returns": 0, "loops": 3, "token_edges": 3}


@dataclasses.dataclass(frozen=True)
class Machine:
    """A finished byte automaton; the arrays are read-only.

    states int32 [n, 5] (LIT, ROW, EXIT, OP, LOOP), table int32 [rows, 256] of target states or -1, ops int32 [k, 8],
    guards int32 [g, 2] (inclusive register intervals, sorted within one op, or masks: see `kernels.passes`), returns
    int32 [r] (a state per label, -1 where the label is not acceptable), loops int32 [l, 3] (minimum and maximum
    characters of a free string, -1: no maximum; the state that this one resembles, -1: it is a free string itself,
    less: it tolerates all characters), token_edges int32 [t, 3] (state, token id, target): tokens that may
    come where a token begins in this state, whatever their bytes.
    State 0 accepts; matching begins at state 1.
    """

    states: NDArray[np.int32]
    table: NDArray[np.int32]
    ops: NDArray[np.int32]
    guards: NDArray[np.int32]
    returns: NDArray[np.int32]
    loops: NDArray[np.int32]
    token_edges: NDArray[np.int32]

    def __post_init__(self) -> None:
        for name in _SHAPES:
            getattr(self, name).flags.writeable = False

    @functools.cached_property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _SHAPES)

    @functools.cached_property
    def tables(self) -> tuple[NDArray[np.int32], ...]:
        """The arrays that describe bytes, in the order of the fields, as the plain tuple that kernels take."""
        return self.states, self.table, self.ops, self.guards, self.returns, self.loops

    @functools.cached_property
    def label_counts(self) -> dict[int, int]:
        """Entry state of a called rule -> with how many labels its callers let it return."""
        calls = self.ops[self.ops[:, 4] == CALL]
        bases = np.unique(calls[:, 6])
        # Return sites lie one after the other, so each ends where the next begins.
        ends = dict(zip(bases.tolist(), [*bases[1:].tolist(), len(self.returns)], strict=True))
        counts: dict[int, int] = {}
        for target, base in zip(calls[:, 5].tolist(), calls[:, 6].tolist(), strict=True):
            usable = int((self.returns[base : ends[base]] >= 0).sum())
            counts[target] = max(counts.get(target, 0), usable)
        return counts

    def to_bytes(self) -> bytes:
        """The length of each array (int64), then the arrays one after the other (int32), little-endian."""
        arrays = [getattr(self, name) for name in _SHAPES]
        lengths = np.array([len(array) for array in arrays], "<i8")
        return b"".join([lengths.tobytes(), *(array.astype("<i4").tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Machine:
        """The inverse of `to_bytes`. Trusts nothing: raises ValueError unless every index fits its array."""
        head = 8 * len(_SHAPES)
        if len(data) < head:
            raise ValueError("truncated")
        lengths = np.frombuffer(data[:head], "<i8").tolist()
        arrays = {}
        position = head
        for (name, width), length in zip(_SHAPES.items(), lengths, strict=True):
            size = 4 * length * (width or 1)
            if length < 0 or position + size > len(data):
                raise ValueError(f"array {name!r} is longer than the data")
            array = np.frombuffer(data, "<i4", length * (width or 1), position).astype(np.int32)
            arrays[name] = array.reshape(-1, width) if width else array
            position += size
        if position != len(data):
            raise ValueError("bytes after the last array")
        machine = cls(**arrays)
        machine.validate()
        return machine

    def validate(self) -> None:
        """Raise ValueError unless every index that a kernel would follow lies inside its array."""
        many = len(self.states)
        lit, row, exit_label, op, loop = self.states.T
        _require(many >= 2, "too few states")
        _require(_inside(lit, -1, 256) and _inside(row, -1, len(self.table)), "state columns")
        _require(_inside(op, 0, len(self.ops)) and _inside(loop, 0, len(self.loops)), "state columns")
        _require(bool((np.flatnonzero(lit >= 0) < many - 1).all()), "literal at the last state")
        _require(_inside(self.table, -1, many) and _inside(self.returns, -1, many), "targets")
        guard_start, guard_end, action, value, move, target, site, mode = self.ops.T
        _require(_inside(guard_start, 0, len(self.guards) + 1) and _inside(guard_end, 0, len(self.guards) + 1), "ops")
        _require(_inside(value, 0, UNBOUNDED + 1), "op values")
        _require(_inside(value[action == SET_BIT], 0, REGISTER_BITS), "op bits")
        _require(
            _inside(action, KEEP, SET_BIT + 1) and _inside(move, STAY, OTHERWISE + 1) and _inside(mode, 0, INHERIT + 1),
            "ops",
        )
        _require(_inside(self.loops[:, 2], TOLERATES_UNESCAPED, many), "loops")
        _require(_inside(self.token_edges[:, [0, 2]], 0, many), "token edges")
        jumps = (move == CALL) | (move == GOTO) | (move == OTHERWISE)
        _require(_inside(target[jumps], 0, many), "op targets")
        # Labels are added to the site of whichever frame is on top, so every site must have room for every label.
        labels = np.concatenate([target[move == RETURN], exit_label])
        _require(_inside(target[move == RETURN], 0, UNBOUNDED) and _inside(exit_label, -1, UNBOUNDED), "labels")
        room = len(self.returns) - max(int(labels.max(initial=0)), 0)
        _require(_inside(site[move == CALL], 0, max(room, 0)), "return sites")


def _inside(values: NDArray[np.int32], low: int, high: int) -> bool:
    return values.size == 0 or bool(values.min() >= low and values.max() < high)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"malformed automaton: {what}")


def _mask(bits: Iterable[int]) -> Interval:
    """The mask with these bits, in two halves."""
    number = sum(1 << bit for bit in set(bits))
    return number & ((1 << HALF) - 1), number >> HALF


def some_clear(bits: Iterable[int]) -> Guard:
    """Passed while at least one of these bits of the register is clear."""
    return ((SOME_CLEAR, 0), _mask(bits))


def all_set(masks: Iterable[Iterable[int]]) -> Guard:
    """Passed once all bits of at least one of the masks are set."""
    return ((ALL_SET, 0), *map(_mask, masks))


def advice(masks: Sequence[Iterable[int]], complete: Sequence[Iterable[int]]) -> Guard:
    """Always passed, but a shortest completion goes here only where all bits of one of `masks` are set.

    Where it begins, all bits of one of `complete` will do, too.
    """
    return ((ADVICE, len(masks)), *map(_mask, (*masks, *complete)))


def union_guards(guards: Sequence[Guard]) -> Guard:
    """The union of guards of one kind, either intervals or `some_clear`; one that is () always passes."""
    if not guards or () in guards:
        return ()
    bounded = [guard for guard in guards if guard != NEVER]
    if bounded and bounded[0][0][0] == SOME_CLEAR:
        low, high = 0, 0
        for _, mask in bounded:
            low, high = low | mask[0], high | mask[1]
        return ((SOME_CLEAR, 0), (low, high))
    merged: list[Interval] = []
    for low, high in sorted(interval for guard in guards for interval in guard):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


class MachineBuilder:
    """Lays out states, rows and ops. State numbers are final when handed out; contents may be filled in later."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = 0
        # One Python list per column: appending and extending these is the fast path of compilation.
        self._lit: list[int] = [-1, -1]
        self._row: list[int] = [-1, -1]
        self._exit: list[int] = [-1, -1]
        self._op: list[int] = [0, 0]
        self._loop: list[int] = [0, 0]
        self._rows: list[bytes] = []
        self._row_ids: dict[bytes, int] = {}
        self._ops: list[tuple[int, ...]] = [(0,) * 8]
        self._op_ids: dict[tuple[object, ...], int] = {}
        self._guards: list[Interval] = []
        self._guard_ids: dict[tuple[Interval, ...], tuple[int, int]] = {(): (0, 0)}
        self._returns: list[int] = []
        self._site_ids: dict[tuple[int, ...], int] = {}
        self._labels = 1
        self._loops: list[tuple[int, int, int]] = [(0, 0, -1)]
        self._token_edges: list[tuple[int, int, int]] = []
        self._loop_ids: dict[tuple[int, int, int], int] = {}

    # -- budget --------------------------------------------------------------------------------------------------

    def spend(self, steps: int) -> None:
        """Count construction steps against the budget; raises LimitExceededError."""
        self._steps += steps
        if self._steps > self._limits.max_steps:
            raise LimitExceededError(f"compiling takes more than {self._limits.max_steps} steps (limit max_steps)")

    # -- states --------------------------------------------------------------------------------------------------

    @property
    def next_state(self) -> int:
        """The number that the next new state gets (what a literal state leads to)."""
        return len(self._lit)

    def state(self, *, lit: int = -1, row: int = -1, exit_label: int = -1, op: int = 0, loop: int = 0) -> int:
        """Append one state and return its number. `lit` leads to the state appended right after it."""
        self._lit.append(lit)
        self._row.append(row)
        self._exit.append(exit_label)
        self._op.append(op)
        self._loop.append(loop)
        if len(self._lit) > self._limits.max_states:
            raise LimitExceededError(f"the automaton has more than {self._limits.max_states} states (limit max_states)")
        return len(self._lit) - 1

    def literal(self, data: bytes, row: int = -1, op: int = 0, loop: int = 0) -> int:
        """Append a chain that reads `data` and ends at the next state appended; returns its first state.

        `op` runs on entering the chain; `row` is where every byte of the chain goes that is not the literal one, `loop`
        what each of its states resembles.
        """
        first = len(self._lit)
        many = len(data)
        self._lit.extend(data)
        self._row.extend([row] * many)
        self._exit.extend([-1] * many)
        self._op.append(op)
        self._op.extend([0] * (many - 1))
        self._loop.extend([loop] * many)
        if len(self._lit) > self._limits.max_states:
            raise LimitExceededError(f"the automaton has more than {self._limits.max_states} states (limit max_states)")
        return first

    def fill(self, state: int, *, row: int = -1, op: int = 0, exit_label: int = -1, loop: int = 0) -> None:
        """Give a state that was appended empty its row, op, exit label and loop."""
        self._row[state] = row
        self._op[state] = op
        self._exit[state] = exit_label
        self._loop[state] = loop

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
            dense = np.full(256, -1, np.int32)
            for byte, target in targets.items():
                dense[byte] = target
        else:
            dense = targets
        content = dense.tobytes()
        number = self._row_ids.get(content)
        if number is None:
            number = self._row_ids[content] = len(self._rows)
            self._rows.append(content)
            self.spend(32)
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
        identity = (intervals, action, value, move, target, tuple(site), enter)
        number = self._op_ids.get(identity)
        if number is None:
            number = self._op_ids[identity] = len(self._ops)
            span = self._guard_span(intervals)
            base = self._site(tuple(site)) if move == CALL else 0
            self._ops.append((*span, action, value, move, target, base, enter))
        return number

    def call(
        self, rule: int, site: Sequence[int], *, guard: Iterable[Interval] = (), enter: int = ENTER_AT_ZERO
    ) -> int:
        return self.op(move=CALL, target=rule, site=site, guard=guard, enter=enter)

    def return_(self, label: int = 0, *, guard: Iterable[Interval] = ()) -> int:
        self._labels = max(self._labels, label + 1)
        return self.op(move=RETURN, target=label, guard=guard)

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

    # -- result --------------------------------------------------------------------------------------------------

    def note_label(self, label: int) -> None:
        """Tell that `label` is used as an exit label, so that every return site has room for it."""
        self._labels = max(self._labels, label + 1)

    def build(self, entry: int) -> Machine:
        """The finished machine, beginning at `entry`."""
        self._op[1] = self.goto(entry)
        states = np.empty((len(self._lit), 5), np.int32)
        for column, values in enumerate((self._lit, self._row, self._exit, self._op, self._loop)):
            states[:, column] = values
        table = np.frombuffer(b"".join(self._rows), np.int32).reshape(-1, 256)
        returns = [*self._returns, *[-1] * self._labels]
        return Machine(
            states=states,
            table=table.copy(),
            ops=np.array(self._ops, np.int32).reshape(-1, 8),
            guards=np.array(self._guards, np.int32).reshape(-1, 2),
            returns=np.array(returns, np.int32),
            loops=np.array(self._loops, np.int32).reshape(-1, 3),
            token_edges=np.array(self._token_edges, np.int32).reshape(-1, 3),
        )
