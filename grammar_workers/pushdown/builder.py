"""Builder of the tables of a `PushdownAutomaton`. Parameters and methods use `op` as the name of an instruction."""

from __future__ import annotations

import functools
import itertools
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of
from grammar_workers.dfa.row_hash import distinct_rows
from grammar_workers.errors import LimitExceededError
from grammar_workers.memo import fork, memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import Guard, Interval, PushdownAutomaton
from grammar_workers.types import TokenId

# Steps of the work budget that a dense row costs.
_ROW_STEPS = 32


# (guard, action, operand, move, target, return site, entry mode). A plain tuple, because there are many.
_Op: TypeAlias = tuple[Guard, int, int, int, int, tuple[int, ...], int]
_STATE = struct.Struct(f"{code.STATE_COLUMNS}i")
_EMPTY_STATE = (-1, -1, -1, 0, 0)
_NO_MOVES = np.full(256, -1, np.int32)


def no_moves() -> NDArray[np.int32]:
    """Return a new dense row (the state after each byte) in which no byte leads anywhere, int32 [256] of -1."""
    return _NO_MOVES.copy()


# The dense row for all bytes other than the literal of a state, and the loop of the state (see LOOP_BASE).
Beside: TypeAlias = tuple[int, int]
# No other bytes (row -1) and no loop (0).
NOTHING_BESIDE: Beside = (-1, 0)


@functools.lru_cache(maxsize=4096)
def _letter(byte: int, beside: Beside) -> bytes:
    """Return the encoded state that reads a byte within a literal."""
    row, loop = beside
    return _STATE.pack(byte, row, -1, 0, loop)


def runs(tokens: NDArray[np.int64]) -> list[tuple[TokenId, TokenId]]:
    """Group token IDs into runs of consecutive IDs. Example: 3, 4, 5, 9 are the runs (3, 5) and (9, 9).

    Args:
        tokens: Token IDs in ascending order, int64 [n], n > 0.

    Returns:
        Pairs (first ID, last ID), inclusive, ascending.
    """
    breaks = np.flatnonzero(np.diff(tokens) > 1)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(tokens) - 1)
    return list(zip(tokens[firsts].tolist(), tokens[lasts].tolist(), strict=True))


class PushdownBuilder:
    """Builder of a pushdown automaton: appends states, dense rows (256 next states) and instructions to its tables.

    A state number that a method returns never changes. A method that exceeds a limit raises LimitExceededError.

    Args:
        limits: Limits on the number of states (`max_states`) and on construction steps.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most_states = limits.max_states
        # 32-bit integers, state after state: appending to these is the fast path of compilation.
        self._states = array("i", _EMPTY_STATE * 2)
        self._rows: list[bytes] = []
        self._row_numbers: dict[bytes, int] = {}
        self._ops = array("i", [0] * code.INSTRUCTION_COLUMNS)
        self._op_numbers: dict[_Op, int] = {}
        self._guards: list[Interval] = []
        self._returns = array("i")
        self._labels = 1
        self._loops: list[tuple[int, ...]] = [(0, 0, code.FREE_STRING, code.TOLERATED_RUN)]
        self._token_edges: list[tuple[int, int, int, int]] = []
        self._boundaries: list[tuple[int, int]] = []
        self._distinct: dict[tuple[int, int, int, int], None] = {}

    # -- budget --------------------------------------------------------------------------------------------------

    def spend(self, steps: int) -> None:
        """Count construction steps (units of work). LimitExceededError is raised if the budget is exhausted.

        Args:
            steps: Number of steps, at least 0.
        """
        budget_of(self.limits).spend(steps)

    @property
    def is_empty(self) -> bool:
        """True if no state has been appended."""
        return self.next_state == 2

    def saved(self) -> PushdownBuilder:
        """Return a copy of the builder for `restore`."""
        return fork(self)

    def restore(self, saved: PushdownBuilder) -> None:
        """Replace the contents of this builder by a copy of the contents of another one. The limits stay.

        Args:
            saved: A builder, such as an earlier state of this one from the method `saved`. It is not changed.
        """
        for name in vars(self).keys() - vars(saved).keys():
            delattr(self, name)
        for name, value in vars(fork(saved, limits=self.limits, _most_states=self._most_states)).items():
            setattr(self, name, value)
        self._check_states()

    # -- states --------------------------------------------------------------------------------------------------

    @property
    def next_state(self) -> int:
        """Number that the next appended state will have."""
        return len(self._states) // code.STATE_COLUMNS

    def state(self, *, lit: int = -1, row: int = -1, exit_label: int = -1, op: int = 0, loop: int = 0) -> int:
        """Append one state and return its number.

        Args:
            lit: Byte that leads to the state appended after this one. -1: none.
            row: Number of the dense row (256 next states) for all other bytes. -1: none.
            exit_label: Label with which the rule may return here; it selects the caller's next state. -1: no return.
            op: Number of the instruction that runs on entering the state. 0: none.
            loop: Number from the method `loop`: character sequences that the state allows. 0: unknown.

        Returns:
            The number of the state.
        """
        number = len(self._states) // code.STATE_COLUMNS
        self._states.extend((lit, row, exit_label, op, loop))
        if number >= self._most_states:
            self._check_states()
        return number

    def literal(
        self, data: bytes, *, beside: Sequence[Beside] = (), op: int = 0, end_op: int = 0, end_label: int = -1
    ) -> int:
        """Append one state per byte of `data`, each of which reads its byte, and one state after them.

        Args:
            data: Bytes to read. May be empty.
            beside: For each byte of `data`, a pair of numbers: the dense row (256 next states) for all other bytes, and
                the number from the method `loop`. (): other bytes lead nowhere.
            op: Number of the instruction on entering the first state (if `data` is not empty). 0: none.
            end_op: Number of the instruction on entering the last state. 0: none.
            end_label: Label (number for the caller) with which the rule may return in the last state. -1: no return.

        Returns:
            The number of the first state.
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
        """Append consecutive states without transitions. The caller completes them with `fill` or `fill_states`.

        Args:
            many: Number of states to append.

        Returns:
            The number of the first state.
        """
        first = self.next_state
        self._states.frombytes(_STATE.pack(*_EMPTY_STATE) * many)
        self._check_states()
        return first

    def _check_states(self) -> None:
        if self.next_state > self._most_states:
            raise LimitExceededError(f"the automaton has more than {self._most_states} states (fixed limit max_states)")

    def fill(self, state: int, *, row: int = -1, op: int = 0, exit_label: int = -1, loop: int = 0) -> None:
        """Complete a state that `empty_states` has appended: set all its columns except the literal.

        Args:
            state: Number of the state.
            row: Number of the dense row (256 next states). -1: none.
            op: Number of the instruction that runs on entering the state. 0: none.
            exit_label: Label with which the rule may return here; it selects the caller's next state. -1: no return.
            loop: Number from the method `loop`: character sequences that the state allows. 0: unknown.
        """
        first = state * code.STATE_COLUMNS
        columns = array("i", (row, exit_label, op, loop))
        self._states[first + code.STATE_ROW : first + code.STATE_COLUMNS] = columns

    def fill_states(self, first: int, columns: Mapping[int, Sequence[int] | NDArray[np.int64]]) -> None:
        """Set columns of consecutive states that `empty_states` has appended.

        Args:
            first: Number of the first state.
            columns: Column (STATE_ROW, ...) -> its values, one per state. Other columns are not changed.
        """
        # The view must be released before the array can grow again.
        view = np.frombuffer(self._states, np.int32).reshape(-1, code.STATE_COLUMNS)
        for column, values in columns.items():
            view[first : first + len(values), column] = values

    def set_op(self, state: int, op: int) -> None:
        """Set the number `op` of the instruction that runs on entering a state. 0: no instruction."""
        self._states[state * code.STATE_COLUMNS + code.STATE_INSTRUCTION] = op

    def row_of(self, state: int) -> int:
        """Return the number of the dense row (256 next states) of a state, or -1 if the state has none."""
        return self._states[state * code.STATE_COLUMNS + code.STATE_ROW]

    def called_by(self, state: int) -> int | None:
        """Return the first state of the rule that a state calls when it is entered. None if it calls no rule."""
        first = self._states[state * code.STATE_COLUMNS + code.STATE_INSTRUCTION] * code.INSTRUCTION_COLUMNS
        calls = self._ops[first + code.INSTRUCTION_MOVE] == code.CALL
        return self._ops[first + code.INSTRUCTION_TARGET] if calls else None

    def token_edge(self, state: int, first: TokenId, last: TokenId, target: int) -> None:
        """Add a transition that reads a whole token by its ID. The bytes of the token are not read.

        If transitions of a state overlap, the transition that was added first applies.

        Args:
            state: State in which the token begins.
            first: Lowest token ID of the transition.
            last: Highest token ID of the transition, inclusive.
            target: State after the token.
        """
        self._token_edges.append((state, first, last, target))

    def token_edges(self, state: int, tokens: Iterable[TokenId], target: int) -> None:
        """Add transitions that read whole tokens by their IDs (see `token_edge`).

        Args:
            state: State in which the tokens begin.
            tokens: Token IDs, in any order.
            target: State after each of these tokens.
        """
        for first, last in runs(np.unique(np.fromiter(tokens, np.int64))):
            self.token_edge(state, first, last, target)

    def boundary(self, state: int, target: int) -> None:
        """Add a jump between two tokens, with which tokens are counted.

        Args:
            state: State in which a token has ended. It must not be in a called rule. It must allow everything that
                `target` allows, even the end of the output.
            target: State in which the next token begins.
        """
        self._boundaries.append((state, target))

    def distinct(self, site: Sequence[int], labels: int, *, names: bool = False, endless: bool = False) -> None:
        """Require unique values: two values that a call reads in one array or object must differ.

        Args:
            site: Return states of the call, one per label (number with which the called rule returns). No other call
                may use these return states.
            labels: A value is exempt if its rule returns with this label or a higher one.
            names: True if the call reads a property name after its opening quote.
            endless: True if there are more possible values than an output can contain (see DISTINCT_ENDLESS).
        """
        self._distinct[self._site(tuple(site)), labels, int(names), int(endless)] = None

    # -- tables --------------------------------------------------------------------------------------------------

    def row(self, targets: dict[int, int] | NDArray[np.int32]) -> int:
        """Store a dense row (the next state after each byte), and return its number. Equal rows share a number.

        Args:
            targets: Byte -> next state. Or the next state after each byte, -1 for none, int32 [256].

        Returns:
            The number of the row.
        """
        if isinstance(targets, dict):
            dense = no_moves()
            for byte, target in targets.items():
                dense[byte] = target
        else:
            dense = targets
        return self._row_of_bytes(dense.tobytes())

    def rows(self, dense: NDArray[np.int32]) -> list[int]:
        """Store dense rows, and return their numbers. Equal rows share a number.

        Args:
            dense: The next state after each byte, -1 for none, int32 [n, 256].

        Returns:
            The number of each row.
        """
        content = dense.tobytes()
        return [self._row_of_bytes(content[place : place + 1024]) for place in range(0, len(content), 1024)]

    def _row_of_bytes(self, content: bytes) -> int:
        number = self._row_numbers.setdefault(content, len(self._rows))
        if number == len(self._rows):
            self._rows.append(content)
            self.spend(_ROW_STEPS)
        return number

    def row_targets(self, row: int) -> NDArray[np.int32]:
        """Return a copy of a dense row: the next state after each byte, -1 for none, int32 [256].

        Args:
            row: Number of the row.
        """
        return np.frombuffer(self._rows[row], np.int32).copy()

    def loop(
        self, minimum: int = 0, maximum: int = -1, base: int = code.FREE_STRING, run: int = code.TOLERATED_RUN
    ) -> int:
        """Store a loop: a record of the character sequences that a state allows, with which masks are computed faster.

        Args:
            minimum: Lowest counter for which the record is valid. With FREE_STRING, the minimum length of the string in
                characters.
            maximum: Highest counter for which the record is valid. With FREE_STRING, the maximum length of the string
                in characters. -1: no maximum.
            base: Kind of the record. FREE_STRING: the rest of a JSON string of any characters is allowed. TOLERATES_ANY
                or TOLERATES_UNESCAPED: all sequences of up to `run` characters are allowed (the second kind: without
                characters that JSON must escape). A state of a free string (0 or more): the state has the same
                transitions as that state, except for certain strings. The bounds are those of the free string.
            run: Maximum length of a sequence in characters, at most 32 (TOLERATED_RUN).

        Returns:
            The number of the loop, above 0. Equal loops share a number.
        """
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
        """Store an instruction, which runs when a state is entered. Equal instructions share a number.

        Of `increment_to`, `assign` and `set_bit`, only the first one that is not None applies.

        Args:
            guard: Condition on the counter, as intervals or bits (see `Guard`). (): always true.
            increment_to: Increment the counter, but not above this value.
            assign: Set the counter to this value.
            set_bit: Set the bit with this number in the counter.
            move: STAY, CALL, RETURN, GOTO or OTHERWISE (stay if the guard passes, else jump).
            target: State that the move leads to. RETURN: the label (number that selects the caller's return state).
            site: CALL only: the return states, one per label of the called rule.
            enter: CALL only: counter with which the called rule begins: ENTER_AT_ZERO, ENTER_DEEPER (the caller's plus
                1) or INHERIT (the caller's).

        Returns:
            The number of the instruction, above 0.
        """
        intervals = tuple(guard)
        action, value = code.KEEP, 0
        if increment_to is not None:
            action, value = code.INCREMENT, increment_to
        elif assign is not None:
            action, value = code.ASSIGN, assign
        elif set_bit is not None:
            action, value = code.SET_BIT, set_bit
        return self._number_of((intervals, action, value, move, target, tuple(site), enter))

    def _number_of(self, op: _Op) -> int:
        known = self._op_numbers.get(op)
        if known is not None:
            return known
        guard, action, value, move, target, site, enter = op
        base = self._site(site) if move == code.CALL else 0
        number = self._op_numbers[op] = len(self._ops) // code.INSTRUCTION_COLUMNS
        self._ops.extend((*(self._guard_span(guard) if guard else (0, 0)), action, value, move, target, base, enter))
        return number

    def call(
        self, rule: int, site: Sequence[int], *, guard: Iterable[Interval] = (), enter: int = code.ENTER_AT_ZERO
    ) -> int:
        """Store an instruction that calls a rule. It does not change the caller's counter.

        Args:
            rule: First state of the rule.
            site: Return states, one per label (number with which the rule returns). -1: the label is not accepted.
            guard: Condition on the counter (see `Guard`). (): always true.
            enter: Counter with which the rule begins: ENTER_AT_ZERO, ENTER_DEEPER (the caller's plus 1) or INHERIT (the
                caller's).

        Returns:
            The number of the instruction, above 0.
        """
        return self._number_of((tuple(guard), code.KEEP, 0, code.CALL, rule, tuple(site), enter))

    def calls(
        self, rules: NDArray[np.int64], sites: NDArray[np.int32], guards: Sequence[Guard], guard_of: NDArray[np.int64]
    ) -> int:
        """Append states, each of which calls a rule. The rule begins with the counter of its caller.

        Args:
            rules: First state of the rule that each new state calls, int64 [calls].
            sites: Return states of each call, one per label of the called rule (-1: none), int32 [calls, labels].
            guards: Distinct guards (conditions on the counter) of the calls. (): always true.
            guard_of: Index in `guards` of each call's guard, int64 [calls].

        Returns:
            The number of the first state.
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
        """Store an instruction that returns from a rule to its caller.

        Args:
            label: Number that selects the return state of the caller, from 0.
            guard: Condition on the counter (see `Guard`). (): always true.

        Returns:
            The number of the instruction, above 0.
        """
        self.note_label(label)
        return self._number_of((tuple(guard), code.KEEP, 0, code.RETURN, label, (), code.ENTER_AT_ZERO))

    def goto(self, target: int, *, guard: Iterable[Interval] = (), assign: int | None = None) -> int:
        """Store an instruction that jumps to another state.

        Args:
            target: State to which the instruction jumps.
            guard: Condition on the counter (see `Guard`). If it fails, the automaton is in a dead end. (): always true.
            assign: Value that the counter gets before the jump. None: the counter is not changed.

        Returns:
            The number of the instruction, above 0.
        """
        return self.op(move=code.GOTO, target=target, guard=guard, assign=assign)

    def otherwise(
        self, target: int, *, guard: Iterable[Interval], increment_to: int | None = None, assign: int | None = None
    ) -> int:
        """Store an instruction that jumps to another state if a guard (condition on the counter) fails.

        If the guard passes, the automaton stays in the state. Of `increment_to` and `assign`, only the first one that
        is not None applies. It changes the counter only if the guard passes.

        Args:
            target: State to which the instruction jumps if the guard fails.
            guard: Condition on the counter (see `Guard`).
            increment_to: Increment the counter, but not above this value.
            assign: Set the counter to this value.

        Returns:
            The number of the instruction, above 0.
        """
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
        """Make `build` reserve space for a label. Call this for labels that are not passed to `return_`.

        Args:
            label: Number with which a rule returns, from 0.
        """
        self._labels = max(self._labels, label + 1)

    def build(self, entry: int) -> PushdownAutomaton:
        """Return the finished pushdown automaton.

        Args:
            entry: State in which matching begins.
        """
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
