"""The builder that lays out the tables of a `PushdownAutomaton`."""

from __future__ import annotations

import copy
import functools
import itertools
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of
from grammar_workers.dfa.row_hash import distinct_rows
from grammar_workers.errors import LimitExceededError
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import Guard, Interval, PushdownAutomaton
from grammar_workers.types import TokenId

_ROW_STEPS = 32
"""What a dense row counts against the budget."""


_Op: TypeAlias = tuple[Guard, int, int, int, int, tuple[int, ...], int]
"""(guard, action, value, move, target, site, enter); a plain tuple, because there are many."""
_STATE = struct.Struct(f"{code.STATE_COLUMNS}i")
_EMPTY_STATE = (-1, -1, -1, 0, 0)
_NO_MOVES = np.full(256, -1, np.int32)


def no_moves() -> NDArray[np.int32]:
    """A dense row in which no byte leads anywhere, int32 [256]."""
    return _NO_MOVES.copy()


Beside: TypeAlias = tuple[int, int]
"""The dense row of a state that reads one byte of a literal, for all other bytes, and the loop that it resembles."""
NOTHING_BESIDE: Beside = (-1, 0)


@functools.lru_cache(maxsize=4096)
def _letter(byte: int, beside: Beside) -> bytes:
    """The state that reads a byte within a literal."""
    row, loop = beside
    return _STATE.pack(byte, row, -1, 0, loop)


def runs(tokens: NDArray[np.int64]) -> list[tuple[TokenId, TokenId]]:
    """Ascending tokens as runs without a gap: (first, last)."""
    breaks = np.flatnonzero(np.diff(tokens) > 1)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(tokens) - 1)
    return list(zip(tokens[firsts].tolist(), tokens[lasts].tolist(), strict=True))


class PushdownBuilder:
    """Lays out states, rows and ops. State numbers are final when handed out; contents may be filled in later."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most_states = limits.max_states
        # 32-bit integers, state after state: appending to these is the fast path of compilation.
        self._states = array("i", _EMPTY_STATE * 2)
        self._rows: list[bytes] = []
        self._ops = array("i", [0] * code.INSTRUCTION_COLUMNS)
        self._guards: list[Interval] = []
        self._returns = array("i")
        self._labels = 1
        self._loops: list[tuple[int, ...]] = [(0, 0, code.FREE_STRING, code.TOLERATED_RUN)]
        self._token_edges: list[tuple[int, int, int, int]] = []
        self._boundaries: list[tuple[int, int]] = []
        self._distinct: dict[tuple[int, int, int, int], None] = {}

    # -- budget --------------------------------------------------------------------------------------------------

    def spend(self, steps: int) -> None:
        """Count construction steps; raises LimitExceededError."""
        budget_of(self.limits).spend(steps)

    def saved(self) -> dict[str, Any]:
        """What `restore` needs to forget all that is appended from now on."""
        return {name: value if value is self.limits else copy.copy(value) for name, value in vars(self).items()}

    def restore(self, saved: dict[str, Any]) -> None:
        """Return to the state that `saved` returned; once, for its containers are used."""
        vars(self).clear()
        vars(self).update(saved)

    # -- states --------------------------------------------------------------------------------------------------

    @property
    def next_state(self) -> int:
        """The number that the next new state gets (what a literal state leads to)."""
        return len(self._states) // code.STATE_COLUMNS

    def state(self, *, lit: int = -1, row: int = -1, exit_label: int = -1, op: int = 0, loop: int = 0) -> int:
        """Append one state and return its number. `lit` leads to the state appended right after it."""
        number = len(self._states) // code.STATE_COLUMNS
        self._states.extend((lit, row, exit_label, op, loop))
        if number >= self._most_states:
            self._check_states()
        return number

    def literal(
        self, data: bytes, *, beside: Sequence[Beside] = (), op: int = 0, end_op: int = 0, end_label: int = -1
    ) -> int:
        """Append a chain that reads `data` (may be empty) and the state after it; returns the first.

        `op` runs on entering a chain, `end_op` behind it, where a text may end with `end_label`. `beside` says for each
        byte of the chain where other bytes lead in its place; (): nowhere.
        """
        states = self._states
        first = len(states)
        states.frombytes(b"".join(map(_letter, data, beside or itertools.repeat(NOTHING_BESIDE))))
        states.extend((-1, -1, end_label, end_op, 0))
        if op and data:
            states[first + code.STATE_INSTRUCTION] = op
        if len(states) > self._most_states * code.STATE_COLUMNS:
            self._check_states()
        return first // code.STATE_COLUMNS

    def empty_states(self, many: int) -> int:
        """Append so many empty states; returns the first."""
        first = self.next_state
        self._states.frombytes(_STATE.pack(*_EMPTY_STATE) * many)
        self._check_states()
        return first

    def _check_states(self) -> None:
        if self.next_state > self._most_states:
            raise LimitExceededError(f"the automaton has more than {self._most_states} states (fixed limit max_states)")

    def fill(self, state: int, *, row: int = -1, op: int = 0, exit_label: int = -1, loop: int = 0) -> None:
        """Give a state that was appended empty its row, op, exit label and loop."""
        states, first = self._states, state * code.STATE_COLUMNS
        states[first + code.STATE_ROW] = row
        states[first + code.STATE_EXIT] = exit_label
        states[first + code.STATE_INSTRUCTION] = op
        states[first + code.STATE_LOOP] = loop

    def fill_states(self, first: int, columns: Mapping[int, Sequence[int] | NDArray[np.int64]]) -> None:
        """Give states that were appended empty, one after the other, the values of some columns (STATE_ROW ...)."""
        # The view must be gone before the array can grow again.
        view = np.frombuffer(self._states, np.int32).reshape(-1, code.STATE_COLUMNS)
        for column, values in columns.items():
            view[first : first + len(values), column] = values

    def set_op(self, state: int, op: int) -> None:
        self._states[state * code.STATE_COLUMNS + code.STATE_INSTRUCTION] = op

    def row_of(self, state: int) -> int:
        return self._states[state * code.STATE_COLUMNS + code.STATE_ROW]

    def token_edge(self, state: int, first: TokenId, last: TokenId, target: int) -> None:
        """Let the tokens `first` to `last`, whatever their bytes, lead from `state` to `target` where one begins.

        Of several edges of a token the first one counts.
        """
        self._token_edges.append((state, first, last, target))

    def token_edges(self, state: int, tokens: Iterable[TokenId], target: int) -> None:
        """`token_edge` for tokens in any order."""
        for first, last in runs(np.unique(np.fromiter(tokens, np.int64))):
            self.token_edge(state, first, last, target)

    def boundary(self, state: int, target: int) -> None:
        """Let the next token begin in `target` where one ends in `state`, which is inside of no value that is called.

        What may follow in `target` may follow in `state`, and the end may.
        """
        self._boundaries.append((state, target))

    def distinct(self, site: Sequence[int], labels: int, *, names: bool = False, endless: bool = False) -> None:
        """Let what returns to `site`, a site that nothing else calls with, differ from what has returned from the same
        rule before; see DISTINCT_SITE. Labels from `labels` on are exempt. `endless`: see DISTINCT_ENDLESS.
        """
        self._distinct[self._site(tuple(site)), labels, int(names), int(endless)] = None

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

    @memoized
    def _row_of_bytes(self, content: bytes) -> int:
        self._rows.append(content)
        self.spend(_ROW_STEPS)
        return len(self._rows) - 1

    def row_targets(self, row: int) -> NDArray[np.int32]:
        """A writable copy of a dense row, int32 [256]."""
        return np.frombuffer(self._rows[row], np.int32).copy()

    def loop(
        self, minimum: int = 0, maximum: int = -1, base: int = code.FREE_STRING, run: int = code.TOLERATED_RUN
    ) -> int:
        """The number of a loop, see LOOP_BASE: `minimum` to `maximum` characters (-1: no maximum)."""
        return self._loop(minimum, maximum, base, run)

    @memoized
    def _loop(self, *columns: int) -> int:
        self._loops.append(columns)
        return len(self._loops) - 1

    def op(
        self,
        *,
        guard: Iterable[Interval] = (),
        increment_to: int | None = None,
        assign: int | None = None,
        set_bit: int | None = None,
        move: int = code.STAY,
        target: int = 0,
        site: Sequence[int] = (),
        enter: int = code.ENTER_AT_ZERO,
    ) -> int:
        """The number of an op. `site` lists the return state per label of a CALL, `enter` its counter there."""
        intervals = tuple(guard)
        action, value = code.KEEP, 0
        if increment_to is not None:
            action, value = code.INCREMENT, increment_to
        elif assign is not None:
            action, value = code.ASSIGN, assign
        elif set_bit is not None:
            action, value = code.SET_BIT, set_bit
        return self._number_of((intervals, action, value, move, target, tuple(site), enter))

    @memoized
    def _number_of(self, op: _Op) -> int:
        guard, action, value, move, target, site, enter = op
        base = self._site(site) if move == code.CALL else 0
        self._ops.extend((*self._guard_span(guard), action, value, move, target, base, enter))
        return len(self._ops) // code.INSTRUCTION_COLUMNS - 1

    def call(
        self, rule: int, site: Sequence[int], *, guard: Iterable[Interval] = (), enter: int = code.ENTER_AT_ZERO
    ) -> int:
        return self._number_of((tuple(guard), code.KEEP, 0, code.CALL, rule, tuple(site), enter))

    def calls(
        self, rules: NDArray[np.int64], sites: NDArray[np.int32], guards: Sequence[Guard], guard_of: NDArray[np.int64]
    ) -> int:
        """Append states that call `rules[i]` with the counter as it is while `guards[guard_of[i]]` holds; returns the
        first. `sites` int32 [calls, labels]. What exists already is not looked for.
        """
        numbers, firsts = distinct_rows(sites)
        bases = len(self._returns) + sites.shape[1] * numbers
        self._returns.frombytes(sites[firsts].tobytes())
        first_op = len(self._ops) // code.INSTRUCTION_COLUMNS
        ops = np.zeros((len(rules), code.INSTRUCTION_COLUMNS), np.int32)
        spans = np.array([self._guard_span(guard) for guard in guards])
        ops[:, [code.INSTRUCTION_GUARD_START, code.INSTRUCTION_GUARD_END]] = spans[guard_of]
        ops[:, [code.INSTRUCTION_ACTION, code.INSTRUCTION_MOVE, code.INSTRUCTION_ENTRY]] = (
            code.KEEP,
            code.CALL,
            code.INHERIT,
        )
        ops[:, code.INSTRUCTION_TARGET], ops[:, code.INSTRUCTION_SITE] = rules, bases
        self._ops.frombytes(ops.tobytes())
        first = self.empty_states(len(rules))
        self.fill_states(first, {code.STATE_INSTRUCTION: range(first_op, first_op + len(rules))})
        return first

    def return_(self, label: int = 0, *, guard: Iterable[Interval] = ()) -> int:
        self._labels = max(self._labels, label + 1)
        return self._number_of((tuple(guard), code.KEEP, 0, code.RETURN, label, (), code.ENTER_AT_ZERO))

    def goto(self, target: int, *, guard: Iterable[Interval] = (), assign: int | None = None) -> int:
        return self.op(move=code.GOTO, target=target, guard=guard, assign=assign)

    def otherwise(
        self, target: int, *, guard: Iterable[Interval], increment_to: int | None = None, assign: int | None = None
    ) -> int:
        """The op of a state that is entered (and counts) while `guard` holds, and else sends on to `target`."""
        return self.op(move=code.OTHERWISE, target=target, guard=guard, increment_to=increment_to, assign=assign)

    @memoized
    def _guard_span(self, intervals: tuple[Interval, ...]) -> tuple[int, int]:
        self._guards.extend(intervals)
        end = len(self._guards)
        return (end - len(intervals), end) if intervals else (0, 0)

    @memoized
    def _site(self, states: tuple[int, ...]) -> int:
        self._returns.extend(states)
        return len(self._returns) - len(states)

    # -- result --------------------------------------------------------------------------------------------------

    def note_label(self, label: int) -> None:
        """Tell that `label` is used as an exit label, so that every return site has room for it."""
        self._labels = max(self._labels, label + 1)

    def build(self, entry: int) -> PushdownAutomaton:
        """The finished pushdown automaton, beginning at `entry`."""
        self.set_op(code.START, self.goto(entry))
        table = np.frombuffer(b"".join(self._rows), np.int32).reshape(-1, 256)
        returns = self._returns + array("i", [-1]) * self._labels
        return PushdownAutomaton(
            states=np.array(self._states, np.int32).reshape(-1, code.STATE_COLUMNS),
            table=table,
            instructions=np.array(self._ops, np.int32).reshape(-1, code.INSTRUCTION_COLUMNS),
            guards=np.array(self._guards, np.int32).reshape(-1, code.GUARD_COLUMNS),
            returns=np.array(returns, np.int32),
            loops=np.array(self._loops, np.int32).reshape(-1, code.LOOP_COLUMNS),
            token_edges=np.array(self._token_edges, np.int32).reshape(-1, code.EDGE_COLUMNS),
            boundaries=np.array(self._boundaries, np.int32).reshape(-1, code.BOUNDARY_COLUMNS),
            distinct=np.array(list(self._distinct), np.int32).reshape(-1, code.DISTINCT_COLUMNS),
        )
