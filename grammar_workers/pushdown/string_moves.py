"""Lays out the rows of states that read characters: the bytes of UTF-8, and the escapes of JSON strings.

The rows of all states of an automaton are made at once. What follows a first byte or a backslash is read by rules that
many states share, whatever characters they tell apart: they return with a label for each target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.row_hash import distinct_rows
from grammar_workers.dfa.utf8 import Branch, Bytes, numbered, row_shape
from grammar_workers.memo import memoized
from grammar_workers.pushdown.automaton import Guard, union_guards
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.escapes import (
    ESCAPED,
    SHORT,
    Element,
    escape_bytes,
    escape_sequences,
    escaped_characters,
)
from grammar_workers.pushdown.instructions import DEAD, INHERIT

_BEYOND_ASCII: Charset = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
_BACKSLASH, _QUOTE = 0x5C, 0x22
_FEW_STATES = 8
"""Automata with fewer states are laid out state by state, which is faster then."""
_STATE_STEPS = 96
"""What a state of an automaton counts against the budget; an eighth where many states are laid out together."""
_Escaped: TypeAlias = tuple[tuple[int, int], ...]
"""Characters that must be escaped, each with the number of what it leads to."""


class _Calls(NamedTuple):
    """Calls that `states` of an automaton make after one of `bytes`; `ends[i]` is where they lead from `states[i]`."""

    states: NDArray[np.int64]
    bytes: Sequence[int]
    rule: int
    ends: NDArray[np.int32]


class _Layout(NamedTuple):
    """A DFA while its rows are made: the number of each of its states in the result, then -1; the guards by number."""

    automaton: Dfa
    numbers: NDArray[np.int32]
    guards: list[Guard]
    guard_of: NDArray[np.int64]
    dense: NDArray[np.int32]
    calls: list[_Calls]

    def are_guarded_alike(self, ends: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Per row, bool [rows]: whether all of these states may be entered at the same time, so that a rule that knows
        nothing of them may read the bytes that lead to them."""
        kinds = self.guard_of[ends]
        return (kinds == kinds[:, :1]).all(axis=1)


class StringMoves:
    """Lays rows out in one builder; the states of partial characters are shared between all of them."""

    def __init__(self, builder: PushdownBuilder) -> None:
        self._builder = builder
        self._guard_of: dict[int, Guard] = {}

    def set_guards(self, guards: Iterable[tuple[int, Guard]]) -> None:
        """Tell with which guards states are entered: a character may only begin where one of its ends may be."""
        self._guard_of.update(guards)

    # -- all rows of an automaton --------------------------------------------------------------------------------

    def in_text(self, automaton: Dfa, numbers: Sequence[int]) -> NDArray[np.int32]:
        """Byte -> state for each state outside of JSON, int32 [states, 256]; `numbers` are the states of the result."""
        return self._rows(automaton, numbers, escapes=False)

    def in_string(
        self, automaton: Dfa, numbers: Sequence[int], closings: Sequence[int], *, any_escape: bool
    ) -> NDArray[np.int32]:
        """The same inside a JSON string; `closings` has what the closing quote leads to from each state, or -1."""
        dense = self._rows(automaton, numbers, escapes=not any_escape)
        dense[:, :0x20] = DEAD
        dense[:, _QUOTE] = closings
        if any_escape:
            for state in range(automaton.many_states):
                ranges = [(first, last, numbers[target]) for first, last, target in automaton.ranges(state)]
                self._builder.spend(_STATE_STEPS + 4 * len(ranges))
                dense[state, _BACKSLASH] = self._every_escape(ranges)
        return dense

    def _rows(self, automaton: Dfa, numbers: Sequence[int], *, escapes: bool) -> NDArray[np.int32]:
        """All rows; with `escapes`, a backslash begins those that characters must be written with."""
        if automaton.many_states < _FEW_STATES:
            return self._one_by_one(automaton, numbers, escapes=escapes)
        layout = self._layout(automaton, numbers)
        self._read_utf8(layout)
        if escapes:
            self._read_escapes(layout)
        self._call(layout)
        return layout.dense

    def _one_by_one(self, automaton: Dfa, numbers: Sequence[int], *, escapes: bool) -> NDArray[np.int32]:
        self._builder.spend(len(numbers) * _STATE_STEPS)
        dense = np.empty((len(numbers), 256), np.int32)
        dense[:, :0x80] = np.array([*numbers, DEAD], np.int32)[automaton.ascii]
        for states, shape, targets in automaton.parts(_BEYOND_ASCII):
            for state, ends in zip(states.tolist(), targets.tolist(), strict=True):
                dense[state, 0x80:] = self._after_byte(shape.bytes, [numbers[end] for end in ends])[0x80:]
        if escapes:
            dense[:, _BACKSLASH] = DEAD
            for states, shape, targets in automaton.parts(ESCAPED):
                order, escaped = escaped_characters(shape)
                for state, ends in zip(states.tolist(), targets.tolist(), strict=True) if order else ():
                    dense[state, _BACKSLASH] = self._escape_state(escaped, tuple([numbers[ends[i]] for i in order]))
        return dense

    def _layout(self, automaton: Dfa, numbers: Sequence[int]) -> _Layout:
        guards: dict[Guard, int] = {}
        guard_of = np.zeros(len(numbers), np.int64)
        if self._guard_of:
            guard_of[:] = [guards.setdefault(self._guard_of.get(number, ()), len(guards)) for number in numbers]
        table = np.array([*numbers, DEAD], np.int32)
        return _Layout(
            automaton, table, list(guards) or [()], guard_of, np.full((len(numbers), 256), DEAD, np.int32), []
        )

    def _read_utf8(self, layout: _Layout) -> None:
        """Characters as they are in UTF-8."""
        automaton, table, dense = layout.automaton, layout.numbers, layout.dense
        dense[:, :0x80] = table[automaton.ascii]
        for states, shape, targets in automaton.parts(_BEYOND_ASCII):
            self._builder.spend(len(states) * _STATE_STEPS // 8)
            for first_bytes, rest, order in shape.bytes.branches:
                assert rest is not None
                ends = targets[:, order]
                alike = layout.are_guarded_alike(ends)
                if alike.any():
                    layout.calls.append(_Calls(states[alike], first_bytes, self._rule(rest), ends[alike]))
                self._builder.spend(int(np.count_nonzero(~alike)) * _STATE_STEPS)
                for state, named in zip(states[~alike].tolist(), table[ends[~alike]].tolist(), strict=True):
                    dense[state, first_bytes] = self._continuation(rest, tuple(named))

    def _read_escapes(self, layout: _Layout) -> None:
        """What follows a backslash where characters have one spelling."""
        layout.dense[:, _BACKSLASH] = DEAD
        for states, shape, targets in layout.automaton.parts(ESCAPED):
            order, escaped = escaped_characters(shape)
            if not order:
                continue
            ends = targets[:, order]
            alike = layout.are_guarded_alike(ends)
            if alike.any():
                layout.calls.append(_Calls(states[alike], [_BACKSLASH], self._escape_rule(escaped), ends[alike]))
            for state, named in zip(states[~alike].tolist(), layout.numbers[ends[~alike]].tolist(), strict=True):
                layout.dense[state, _BACKSLASH] = self._escape_state(escaped, tuple(named))

    def _call(self, layout: _Layout) -> None:
        """Append a state for each distinct call and write it where it belongs."""
        by_width: dict[int, list[_Calls]] = {}
        for call in layout.calls:
            by_width.setdefault(call.ends.shape[1], []).append(call)
        for calls in by_width.values():
            rules = np.repeat([call.rule for call in calls], [len(call.states) for call in calls])
            ends = np.concatenate([call.ends for call in calls])
            numbers, firsts = distinct_rows(np.column_stack([rules.astype(np.int32), ends]))
            ends = ends[firsts]
            guard_of = layout.guard_of[ends[:, 0]]
            first = self._builder.calls(rules[firsts], layout.numbers[ends], layout.guards, guard_of)
            begin = 0
            for call in calls:
                end = begin + len(call.states)
                layout.dense[call.states[:, None], call.bytes] = first + numbers[begin:end, None]
                begin = end

    # -- inside one character --------------------------------------------------------------------------------------

    @memoized
    def inside(self, automaton: Dfa, number: int, spelling: bytes) -> list[int]:
        """The rows inside of a character of a JSON string that is spelled so: one behind each byte but the last.

        They lead where all other characters that begin with these bytes lead from the only state of `automaton`, the
        pushdown automaton's `number`: back to it. A row is -1 where no other character begins so.
        """
        rows: list[int] = []
        if spelling[0] == _BACKSLASH:
            ((_, shape, _),) = automaton.parts(ESCAPED)
            order, escaped = escaped_characters(shape)
            dense = self._spelled_moves(escape_bytes(escaped), [number] * len(order)) if order else None
            for byte in spelling[1:]:
                rows.append(-1 if dense is None else self._builder.row(dense))
                following = -1 if dense is None else int(dense[byte])
                within = following not in (DEAD, number)
                dense = self._builder.row_targets(self._builder.row_of(following)) if within else None
            return rows
        ((_, shape, _),) = automaton.parts(_BEYOND_ASCII)
        branches = shape.bytes.branches
        for byte in spelling[:-1]:
            rest = next((branch.rest for branch in branches if byte in branch.bytes), None)
            branches = [] if rest is None else rest.branches
            rows.append(-1 if rest is None else self._builder.row(self._after_byte(rest, [number] * rest.many_targets)))
        return rows

    # -- single rows -----------------------------------------------------------------------------------------------

    def row(self, ranges: Iterable[tuple[int, int, int]]) -> NDArray[np.int32]:
        """Byte -> state outside of JSON, int32 [256]: (first character, last character, state) in order."""
        targets, runs = numbered(((first, last), number) for first, last, number in ranges)
        shape = row_shape(tuple([(*characters, number) for characters, number in runs]))
        return self._after_byte(shape.bytes, targets)

    @memoized
    def _op_before(self, ends: frozenset[int]) -> int:
        """The op of a state inside a character: no character may begin unless one of its ends may be entered."""
        guard = union_guards([self._guard_of.get(target, ()) for target in ends])
        return self._builder.op(guard=guard) if guard else 0

    def _after(self, branches: Sequence[Branch], targets: Sequence[int]) -> list[int]:
        """The state after the first bytes of each branch."""
        states = []
        for first_bytes, rest, order in branches:
            if rest is None:
                states.append(targets[order[0]])
            else:
                states.append(self._continuation(rest, tuple([targets[number] for number in order])))
            self._builder.spend(len(first_bytes))
        return states

    def _after_byte(self, rest: Bytes, targets: Sequence[int]) -> NDArray[np.int32]:
        """Byte -> state."""
        return np.array([DEAD, *self._after(rest.branches, targets)], np.int32)[rest.slots]

    @memoized
    def _continuation(self, rest: Bytes, targets: tuple[int, ...]) -> int:
        """The state inside a character, of which `rest` must follow."""
        if self._is_guarded_alike(targets):
            return self._called(self._rule(rest), targets)
        return self._partial(self._after_byte(rest, targets), targets)

    @memoized
    def _rule(self, rest: Bytes) -> int:
        """The state that begins a rule which reads `rest`, and whose labels stand for the targets."""
        ends = [self._done(number) for number in range(rest.many_targets)]
        return self._builder.state(row=self._builder.row(self._after_byte(rest, ends)))

    def _is_guarded_alike(self, targets: Iterable[int]) -> bool:
        return not self._guard_of or len({self._guard_of.get(target, ()) for target in targets}) == 1

    def _called(self, rule: int, targets: Sequence[int]) -> int:
        """The state that calls a rule, whose labels stand for `targets`."""
        guard = self._guard_of.get(targets[0], ())
        return self._builder.state(op=self._builder.call(rule, targets, guard=guard, enter=INHERIT))

    @memoized
    def _done(self, label: int) -> int:
        """The state that ends a rule."""
        return self._builder.state(op=self._builder.return_(label))

    # -- escapes ---------------------------------------------------------------------------------------------------

    @memoized
    def _escape_rule(self, escaped: _Escaped) -> int:
        """The state that begins a rule which reads what follows a backslash: characters, each with a label."""
        ends = [self._done(number) for number in range(1 + max(number for _, number in escaped))]
        return self._spelled(escape_bytes(escaped), ends)

    @memoized
    def _escape_state(self, escaped: _Escaped, targets: tuple[int, ...]) -> int:
        """The state behind a backslash."""
        if self._is_guarded_alike(targets):
            return self._called(self._escape_rule(escaped), targets)
        return self._spelled(escape_bytes(escaped), targets)

    def _spelled(self, read: Bytes, targets: Sequence[int]) -> int:
        """The state from which one of a few byte sequences must follow, in states of its own."""
        return self._partial(self._spelled_moves(read, targets), targets)

    def _spelled_moves(self, read: Bytes, targets: Sequence[int]) -> NDArray[np.int32]:
        """Byte -> state."""
        after = [
            targets[order[0]] if rest is None else self._spelled(rest, [targets[number] for number in order])
            for _, rest, order in read.branches
        ]
        return np.array([DEAD, *after], np.int32)[read.slots]

    def _every_escape(self, ranges: Sequence[tuple[int, int, int]]) -> int:
        """The same for every escape of every character: (first, last, state) per run of characters."""
        if not ranges:
            return -1
        targets = {target for _, _, target in ranges}
        if len(targets) == 1 and (done := self._done(0)) not in targets:
            rule = self._every_escape([(first, last, done) for first, last, _ in ranges])
            return self._called(rule, list(targets))
        sequences = [(rest, target) for first, last, target in ranges for rest in escape_sequences(first, last)]
        moves = {ord("u"): self._escaped_rest(tuple(sequences))}
        for code, byte in (*SHORT.items(), (ord("/"), ord("/"))):
            moves.update((byte, target) for first, last, target in ranges if first <= code <= last)
        return self._partial(moves, targets)

    @memoized
    def _escaped_rest(self, rests: tuple[tuple[tuple[Element, ...], int], ...]) -> int:
        """The state inside an escape from which one of `rests` must follow."""
        options: dict[int, list[tuple[tuple[Element, ...], int]]] = {}
        for (element, *rest), target in rests:
            for byte in element:
                options.setdefault(byte, []).append((tuple(rest), target))
        moves = {
            byte: parts[0][1] if not parts[0][0] else self._escaped_rest(tuple(parts))
            for byte, parts in options.items()
        }
        self._builder.spend(8 * len(rests))
        return self._partial(moves, [target for _, target in rests])

    def _partial(self, targets: dict[int, int] | NDArray[np.int32], ends: Iterable[int]) -> int:
        op = self._op_before(frozenset(ends)) if self._guard_of else 0
        return self._builder.state(row=self._builder.row(targets), op=op)
