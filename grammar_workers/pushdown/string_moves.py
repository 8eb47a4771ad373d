"""Builder of dense rows (next state after each byte) for states that read characters: UTF-8, and escapes of JSON.

The rows of all states of an automaton are built together. A state reads the first byte of a character, or a backslash,
by its row. Then it calls a rule (a part of the automaton that is called), which reads the remaining bytes. Many states
share a rule. The rule returns with a label (a number), for which each of these states has its own next state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.row_hash import distinct_rows
from grammar_workers.dfa.utf8 import Bytes, shape_of
from grammar_workers.memo import memoized
from grammar_workers.pushdown.automaton import Guard, union_guards
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.escapes import ESCAPED, Element, escape_bytes, escape_sequences, escaped_characters
from grammar_workers.pushdown.instructions import DEAD, INHERIT
from grammar_workers.pushdown.json_text import BACKSLASH, QUOTE, SHORT_ESCAPES

_BEYOND_ASCII: Charset = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
# Automata with fewer states are laid out state by state, which is faster for them.
_FEW_STATES = 8
# Steps of the work budget per state of an automaton; an eighth of it where many states are laid out together.
_STATE_STEPS = 96
# Code points that must be escaped, each with the number of its target.
_Escaped: TypeAlias = tuple[tuple[int, int], ...]


class _Calls(NamedTuple):
    """Calls of one rule that `states` make after one of `bytes`. The labels lead `states[i]` to `ends[i]`."""

    states: NDArray[np.int64]
    bytes: Sequence[int]
    rule: int
    ends: NDArray[np.int32]


class _Layout(NamedTuple):
    """The intermediate data of the rows of a DFA.

    `numbers` has the pushdown state of each state of the DFA, then -1. `guards` has the distinct guards, and `guard_of`
    the index of each state's guard.
    """

    automaton: Dfa
    numbers: NDArray[np.int32]
    guards: list[Guard]
    guard_of: NDArray[np.int64]
    dense: NDArray[np.int32]
    calls: list[_Calls]

    def are_guarded_alike(self, ends: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return per row (bool [rows]) whether all its states have the same guard.

        A shared rule contains no guards, so it may read the bytes that lead to these states only if they all have the
        same one.
        """
        kinds = self.guard_of[ends]
        return (kinds == kinds[:, :1]).all(axis=1)


class StringMoves:
    """Builder of the dense rows (next state after each byte) of states that read characters.

    All rows of this object share the states that read the second and later bytes of a character.

    Args:
        builder: Builder of the pushdown automaton. States for the later bytes of characters are appended to it.

    Attributes:
        guard_of: State -> guard (condition on the counter) that must pass on entering it. A character may lead to
            several of these states, depending on its later bytes. Rows that are built later allow the first byte of a
            character only if at least one of their guards passes.
    """

    def __init__(self, builder: PushdownBuilder) -> None:
        self._builder = builder
        self.guard_of: dict[int, Guard] = {}

    # -- all rows of an automaton --------------------------------------------------------------------------------

    def in_text(self, automaton: Dfa, numbers: Sequence[int]) -> NDArray[np.int32]:
        """Build the dense row of each state of an automaton over characters, for plain UTF-8 text.

        Args:
            automaton: The language of the text.
            numbers: For each state of the automaton, the number of its pushdown state.

        Returns:
            Next state after each byte, -1 for none, int32 [states, 256].
        """
        return self._rows(automaton, numbers, escapes=False)

    def in_string(
        self, automaton: Dfa, numbers: Sequence[int], closings: Sequence[int], *, any_escape: bool
    ) -> NDArray[np.int32]:
        """Build the dense row of each state of an automaton over characters, inside a JSON string.

        Args:
            automaton: The language of the string's contents.
            numbers: For each state of the automaton, the number of its pushdown state.
            closings: For each state of the automaton, the state after the closing quote. -1: no closing quote.
            any_escape: True: every escape of every character is allowed. False: only the canonical encoding is.

        Returns:
            Next state after each byte, -1 for none, int32 [states, 256].
        """
        dense = self._rows(automaton, numbers, escapes=not any_escape)
        dense[:, :0x20] = DEAD
        dense[:, QUOTE] = closings
        if any_escape:
            for state in range(automaton.many_states):
                ranges = [(first, last, numbers[target]) for first, last, target in automaton.ranges(state)]
                self._builder.spend(_STATE_STEPS + 4 * len(ranges))
                dense[state, BACKSLASH] = self._every_escape(ranges)
        return dense

    def _rows(self, automaton: Dfa, numbers: Sequence[int], *, escapes: bool) -> NDArray[np.int32]:
        """Return all rows. With `escapes`, a backslash begins the characters that must be escaped."""
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
            dense[:, BACKSLASH] = DEAD
            for states, shape, targets in automaton.parts(ESCAPED):
                order, escaped = escaped_characters(shape)
                for state, ends in zip(states.tolist(), targets.tolist(), strict=True) if order else ():
                    dense[state, BACKSLASH] = self._escape_state(escaped, tuple([numbers[ends[i]] for i in order]))
        return dense

    def _layout(self, automaton: Dfa, numbers: Sequence[int]) -> _Layout:
        guards: dict[Guard, int] = {}
        guard_of = np.zeros(len(numbers), np.int64)
        if self.guard_of:
            guard_of[:] = [guards.setdefault(self.guard_of.get(number, ()), len(guards)) for number in numbers]
        table = np.array([*numbers, DEAD], np.int32)
        return _Layout(
            automaton, table, list(guards) or [()], guard_of, np.full((len(numbers), 256), DEAD, np.int32), []
        )

    def _read_utf8(self, layout: _Layout) -> None:
        """Fill in the characters as UTF-8."""
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
        """Fill in the targets of the backslash, where characters have one encoding only."""
        layout.dense[:, BACKSLASH] = DEAD
        for states, shape, targets in layout.automaton.parts(ESCAPED):
            order, escaped = escaped_characters(shape)
            if not order:
                continue
            ends = targets[:, order]
            alike = layout.are_guarded_alike(ends)
            if alike.any():
                layout.calls.append(_Calls(states[alike], [BACKSLASH], self._escape_rule(escaped), ends[alike]))
            for state, named in zip(states[~alike].tolist(), layout.numbers[ends[~alike]].tolist(), strict=True):
                layout.dense[state, BACKSLASH] = self._escape_state(escaped, tuple(named))

    def _call(self, layout: _Layout) -> None:
        """Append a state for each distinct call, and write its number into the rows of its callers."""
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
        """Return the dense rows (next state after each byte) for the positions inside one encoded character.

        The character is part of a constant JSON string. At each position, the row reads the next byte of all other
        characters whose encodings begin with the same bytes. The complete other characters lead to the state `number`.

        Args:
            automaton: Automaton with a single state, to which its characters lead back.
            number: The pushdown state of this single state.
            spelling: The bytes of the encoded character.

        Returns:
            Numbers of the rows in the builder: one after each byte of `spelling` except the last. -1: no other
            character begins with these bytes.
        """
        rows: list[int] = []
        if spelling[0] == BACKSLASH:
            ((_, shape, _),) = automaton.parts(ESCAPED)
            order, escaped = escaped_characters(shape)
            dense = escape_bytes(escaped).row([number] * len(order), self._spelled) if order else None
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
        """Build the dense row of one state, for plain UTF-8 text.

        Args:
            ranges: Triples (first code point, last code point, next state), ascending, bounds inclusive.

        Returns:
            Next state after each byte, -1 for none, int32 [256].
        """
        targets, shape = shape_of(ranges)
        return self._after_byte(shape.bytes, targets)

    @memoized
    def _op_before(self, ends: frozenset[int]) -> int:
        """Return an instruction for a state inside a character. It passes if some end state may be entered."""
        guard = union_guards([self.guard_of.get(target, ()) for target in ends])
        return self._builder.op(guard=guard) if guard else 0

    def _after_byte(self, rest: Bytes, targets: Sequence[int]) -> NDArray[np.int32]:
        """Return the state by byte, int32 [256]."""
        self._builder.spend(int(np.count_nonzero(rest.slots)))
        return rest.row(targets, self._continuation)

    @memoized
    def _continuation(self, rest: Bytes, targets: tuple[int, ...]) -> int:
        """Return a state inside a character, from which `rest` must follow."""
        if self._is_guarded_alike(targets):
            return self._called(self._rule(rest), targets)
        return self._partial(self._after_byte(rest, targets), targets)

    @memoized
    def _rule(self, rest: Bytes) -> int:
        """Append a rule that reads `rest` and returns with the number of the target. Return its first state."""
        ends = [self._done(number) for number in range(rest.many_targets)]
        return self._builder.state(row=self._builder.row(self._after_byte(rest, ends)))

    def _is_guarded_alike(self, targets: Iterable[int]) -> bool:
        return not self.guard_of or len({self.guard_of.get(target, ()) for target in targets}) == 1

    def _called(self, rule: int, targets: Sequence[int]) -> int:
        """Append a state that calls a rule whose labels lead to `targets`."""
        guard = self.guard_of.get(targets[0], ())
        return self._builder.state(op=self._builder.call(rule, targets, guard=guard, enter=INHERIT))

    @memoized
    def _done(self, label: int) -> int:
        """Return the state that ends a rule with `label`."""
        return self._builder.state(op=self._builder.return_(label))

    # -- escapes ---------------------------------------------------------------------------------------------------

    @memoized
    def _escape_rule(self, escaped: _Escaped) -> int:
        """Append a rule that reads the bytes after a backslash and returns with the number of the target."""
        ends = [self._done(number) for number in range(1 + max(number for _, number in escaped))]
        return self._spelled(escape_bytes(escaped), ends)

    @memoized
    def _escape_state(self, escaped: _Escaped, targets: tuple[int, ...]) -> int:
        """Return the state after a backslash."""
        if self._is_guarded_alike(targets):
            return self._called(self._escape_rule(escaped), targets)
        return self._spelled(escape_bytes(escaped), targets)

    def _spelled(self, read: Bytes, targets: Sequence[int]) -> int:
        """Append the states that read one of a few byte sequences. Return the first."""
        return self._partial(read.row(targets, self._spelled), targets)

    def _every_escape(self, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Return the state after a backslash where every escape of every character is allowed, or -1.

        `ranges` are runs of characters as (first, last, state).
        """
        if not ranges:
            return -1
        targets = {target for _, _, target in ranges}
        if len(targets) == 1 and (done := self._done(0)) not in targets:
            rule = self._every_escape([(first, last, done) for first, last, _ in ranges])
            return self._called(rule, list(targets))
        sequences = [(rest, target) for first, last, target in ranges for rest in escape_sequences(first, last)]
        moves = {ord("u"): self._escaped_rest(tuple(sequences))}
        for character, byte in (SHORT_ESCAPES | {"/": ord("/")}).items():
            moves.update((byte, target) for first, last, target in ranges if first <= ord(character) <= last)
        return self._partial(moves, targets)

    @memoized
    def _escaped_rest(self, rests: tuple[tuple[tuple[Element, ...], int], ...]) -> int:
        """Return the state inside an escape from which one of `rests` must follow."""
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
        op = self._op_before(frozenset(ends)) if self.guard_of else 0
        return self._builder.state(row=self._builder.row(targets), op=op)
