"""Lowers character automata to machine states: as raw text in UTF-8, or as the body of a JSON string.

Lengths are counted in the register, never unrolled: for each state of the character automaton, the register values from
which some accepting continuation still fits are worked out ahead, and guard the moves into that state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers import charset
from grammar_workers.character_automaton import CharacterAutomaton
from grammar_workers.charset import ALL
from grammar_workers.errors import LimitExceededError
from grammar_workers.escape_shapes import SHORT, EscapeShape, escape_shape, escaped_characters
from grammar_workers.escape_spelling import Element, element_bytes, escape_sequences
from grammar_workers.kernels import INHERIT, TOLERATES_ANY, TOLERATES_UNESCAPED
from grammar_workers.machine import NEVER, UNBOUNDED, Interval, union_guards
from grammar_workers.machine_builder import MachineBuilder
from grammar_workers.machine_fragment import shared
from grammar_workers.string_slice import LONGEST_RUN, RARE
from grammar_workers.utf8_shapes import Branch, Bytes, RowShape, numbered, row_shape

ANY_TEXT = CharacterAutomaton.of((0,), ((0,),), (1,))
"""Every text."""

_BACKSLASH, _QUOTE = 0x5C, 0x22
_MAX_LENGTH_TABLE = 50_000_000
_SHARED_STATES = 12
"""Automata with fewer states are cheaper to lay out than to copy."""


class StringMachine:
    """Lowers automata into one builder; the states of partial characters are shared between all of them.

    `any_escape` lets strings spell characters in any way that JSON has.
    """

    def __init__(self, builder: MachineBuilder, *, any_escape: bool = False) -> None:
        self._builder = builder
        self.any_escape = any_escape
        self._escaped_rests: dict[tuple[tuple[tuple[Element, ...], int], ...], int] = {}
        self._guard_of: dict[int, tuple[Interval, ...]] = {}
        self._continuations: dict[tuple[Bytes, tuple[int, ...]], int] = {}
        self._rules: dict[Bytes, int] = {}
        self._returns: dict[int, int] = {}
        self._ops_before: dict[frozenset[int], int] = {}
        self._escape_rules: dict[tuple[tuple[int, int], ...], int] = {}
        self._escape_states: dict[tuple[tuple[tuple[int, int], ...], tuple[int, ...]], int] = {}
        self._json_strings: dict[Hashable, int] = {}
        self._leads: dict[tuple[RowShape, tuple[int, ...]], list[int]] = {}

    def raw_text(self, automaton: CharacterAutomaton) -> int:
        """States that read the automaton's language as UTF-8; accepting ones carry exit label 0. Returns the first."""
        return self.raw_states(automaton, {})[0]

    def raw_states(self, automaton: CharacterAutomaton, known: Mapping[int, int]) -> list[int]:
        """The same for each state of the automaton; one whose label is in `known` is that state of the machine."""
        numbers = [known[label] if label in known else self._builder.state() for label in automaton.accepting]
        loops = [0] * len(numbers)
        # A known state may forbid more than the automaton does.
        for state in automaton.tolerant_states(UNESCAPED, LONGEST_RUN) if not known else ():
            loops[state] = self._builder.loop(base=TOLERATES_UNESCAPED)
        for state, number in enumerate(numbers):
            if automaton.accepting[state] in known:
                continue
            row = self.raw_row((first, last, numbers[target]) for first, last, target in automaton.ranges(state))
            exit_label = 0 if automaton.accepting[state] else -1
            self._builder.fill(number, row=row, exit_label=exit_label, loop=loops[state])
        return numbers

    def raw_row(self, ranges: Iterable[tuple[int, int, int]]) -> int:
        """The dense row of a state outside of JSON: (first character, last character, machine state) in UTF-8."""
        targets, shape = numbered(((first, last), number) for first, last, number in ranges)
        row = self._dense(row_shape(tuple([(*characters, number) for characters, number in shape])), targets)
        self._builder.spend(int(np.count_nonzero(row >= 0)) + 1)
        return self._builder.row(row)

    def json_string(
        self,
        automaton: CharacterAutomaton,
        closed: Sequence[int],
        lengths: Interval = (0, UNBOUNDED),
        guards: Sequence[tuple[Interval, ...]] = (),
    ) -> int:
        """States that read the rest of a JSON string after its opening quote. Returns the first.

        `closed[state]` is where the closing quote leads from an accepting state of the automaton. With `lengths`, the
        register counts characters from 0 and must end within these bounds; without, it is left alone and must pass
        `guards[state]` on entering a state.
        """
        identity = (automaton, tuple(closed), lengths, tuple(guards))
        known = self._json_strings.get(identity)
        if known is None:
            if guards or self.any_escape or automaton.many_states < _SHARED_STATES:
                known = self._json_string(automaton, closed, lengths, guards)
            else:
                known = self._shared_json_string(automaton, closed, lengths)
            self._json_strings[identity] = known
        return known

    def _shared_json_string(self, automaton: CharacterAutomaton, closed: Sequence[int], lengths: Interval) -> int:
        """Formats and long patterns are laid out once for all machines of this process."""
        closings = [closing if accepts else -1 for closing, accepts in zip(closed, automaton.accepting, strict=True)]
        outside = [closing for closing in dict.fromkeys(closings) if closing != -1]
        numbers = {closing: index for index, closing in enumerate([*outside, -1])}
        shape = tuple([numbers[closing] for closing in closings])

        def build(builder: MachineBuilder, outside: Sequence[int]) -> list[int]:
            ends = [*outside, -1]
            return [StringMachine(builder)._json_string(automaton, [ends[number] for number in shape], lengths, ())]

        return int(shared(self._builder, ("string", automaton, shape, lengths), build, outside)[0])

    def _json_string(
        self,
        automaton: CharacterAutomaton,
        closed: Sequence[int],
        lengths: Interval,
        guards: Sequence[tuple[Interval, ...]],
    ) -> int:
        builder = self._builder
        numbers = [builder.state() for _ in automaton.accepting]
        ops = [0] * len(numbers)
        loop_bounds = (lengths[0], -1 if lengths[1] == UNBOUNDED else lengths[1])
        counted = lengths != (0, UNBOUNDED)
        if counted:
            cap = lengths[0] if lengths[1] == UNBOUNDED else lengths[1]
            for state, entry in enumerate(_arrival_guards(automaton, lengths)):
                self._guard_of[numbers[state]] = entry or NEVER
                ops[state] = builder.op(guard=entry or NEVER, increment_to=cap)
        elif guards:
            self._guard_of.update(zip(numbers, guards, strict=True))
            ops = [builder.op(guard=guard) if guard else 0 for guard in guards]
        tolerant = self._tolerance(automaton, [self._guard_of.get(number, ()) for number in numbers], counted)
        closings: dict[int, int] = {}
        for state, number in enumerate(numbers):
            closing = closed[state] if automaton.accepting[state] else -1
            if counted and closing != -1:
                if closing not in closings:
                    closings[closing] = builder.state(op=builder.goto(closing, guard=[lengths]))
                closing = closings[closing]
            row, free = self._row(automaton, state, numbers, closing)
            loop = builder.loop(*loop_bounds) if free and closing != -1 else tolerant[state]
            if self.any_escape:
                # What is precomputed per vocabulary holds for the canonical spellings only.
                loop = 0
            builder.fill(number, row=row, op=ops[state], loop=loop)
            if counted and state == 0:
                # Entering the first state after a character counts, entering it after the opening quote must not.
                first = builder.state(row=row, loop=loop)
        return first if counted else numbers[0]

    def _tolerance(self, automaton: CharacterAutomaton, guards: list[tuple[Interval, ...]], counted: bool) -> list[int]:
        """Per state: the loop number that says which characters it tolerates, whatever they lead to; 0 for none."""
        bounds = (0, -1)
        if counted:
            # Every state must let the register pass, so the narrowest interval counts.
            if any(len(guard) != 1 or guard == NEVER for guard in guards):
                return [0] * len(guards)
            highest = min(guard[0][1] for guard in guards)
            bounds = (max(guard[0][0] for guard in guards), -1 if highest == UNBOUNDED else highest)
        elif len(set(guards)) > 1:
            return [0] * len(guards)
        result = [0] * len(guards)
        for base, characters in ((TOLERATES_UNESCAPED, UNESCAPED), (TOLERATES_ANY, _COMMON)):
            for state in automaton.tolerant_states(characters, LONGEST_RUN):
                result[state] = self._builder.loop(*bounds, base)
        return result

    # -- rows ----------------------------------------------------------------------------------------------------

    def _row(self, automaton: CharacterAutomaton, state: int, numbers: list[int], closing: int) -> tuple[int, bool]:
        """The dense row of a state inside a string, and whether every character leads back to the state itself."""
        reached, shape = automaton.row(state)
        targets = [numbers[target] for target in reached]
        dense = self._dense(shape, targets)
        dense[:0x20] = -1
        if self.any_escape:
            dense[_BACKSLASH] = self._every_escape([(a, b, targets[number]) for a, b, number in shape.ranges])
        else:
            order, escaped = escaped_characters(shape)
            dense[_BACKSLASH] = self._escape(escaped, tuple([targets[number] for number in order])) if order else -1
        dense[_QUOTE] = closing
        self._builder.spend(64)
        return self._builder.row(dense), reached == [state] and shape.reads_all

    def _dense(self, shape: RowShape, targets: Sequence[int]) -> NDArray[np.int32]:
        """Byte -> state, for characters as they are in UTF-8."""
        return np.array([-1, *targets, *self._lead_states(shape, tuple(targets))], np.int32)[shape.slots]

    def _op_before(self, targets: Iterable[int]) -> int:
        """The op of a state inside a character: no character may begin unless one of its ends may be entered."""
        if not self._guard_of:
            return 0
        ends = frozenset(targets)
        known = self._ops_before.get(ends)
        if known is None:
            guard = union_guards([self._guard_of.get(target, ()) for target in ends])
            known = self._ops_before[ends] = self._builder.op(guard=guard) if guard else 0
        return known

    def _lead_states(self, shape: RowShape, targets: tuple[int, ...]) -> list[int]:
        """The states after each of `shape.leads`."""
        known = self._leads.get((shape, targets))
        if known is None:
            known = self._leads[shape, targets] = self._after(shape.leads, targets)
        return known

    def _after(self, branches: Sequence[Branch], targets: Sequence[int]) -> list[int]:
        """The state after the first bytes of each branch."""
        states = []
        for first_bytes, rest, order in branches:
            if rest is None:
                states.append(targets[order[0]])
            else:
                named = tuple([targets[number] for number in order])
                state = self._continuations.get((rest, named))
                states.append(self._continuation(rest, named) if state is None else state)
            self._builder.spend(len(first_bytes))
        return states

    def _after_byte(self, rest: Bytes, targets: Sequence[int]) -> NDArray[np.int32]:
        """Byte -> state."""
        return np.array([-1, *self._after(rest.branches, targets)], np.int32)[rest.slots]

    def _continuation(self, rest: Bytes, targets: tuple[int, ...]) -> int:
        """A new state inside a character, of which `rest` must follow."""
        if self._is_guarded_alike(targets):
            rule = self._rules.get(rest)
            if rule is None:
                ends = [self._done(number) for number in range(len(targets))]
                rule = self._rules[rest] = self._builder.state(row=self._builder.row(self._after_byte(rest, ends)))
            state = self._called(rule, targets)
        else:
            state = self._partial(self._after_byte(rest, targets), targets)
        self._continuations[rest, targets] = state
        return state

    def _is_guarded_alike(self, targets: Iterable[int]) -> bool:
        """Whether all of these states may be entered at the same time, so that a rule that knows nothing of them may
        read the bytes that lead to them, and return with a label for each.

        A handful of such rules serves all states, whatever characters they tell apart.
        """
        return not self._guard_of or len({self._guard_of.get(target, ()) for target in targets}) == 1

    def _called(self, rule: int, targets: Sequence[int]) -> int:
        """The state that calls a rule, whose labels stand for `targets`."""
        guard = self._guard_of.get(targets[0], ())
        return self._builder.state(op=self._builder.call(rule, targets, guard=guard, enter=INHERIT))

    def _done(self, label: int) -> int:
        """The state that ends a rule."""
        known = self._returns.get(label)
        if known is None:
            known = self._returns[label] = self._builder.state(op=self._builder.return_(label))
        return known

    def _escape(self, escaped: tuple[tuple[int, int], ...], targets: tuple[int, ...]) -> int:
        """The state after a backslash; `escaped` has the characters that have no raw spelling, with target numbers."""
        known = self._escape_states.get((escaped, targets))
        if known is None:
            if self._is_guarded_alike(targets):
                rule = self._escape_rules.get(escaped)
                if rule is None:
                    ends = [self._done(number) for number in range(len(targets))]
                    rule = self._escape_rules[escaped] = self._escape_table(escape_shape(escaped), ends)
                known = self._called(rule, targets)
            else:
                known = self._escape_table(escape_shape(escaped), targets)
            self._escape_states[escaped, targets] = known
        return known

    def _escape_table(self, shape: EscapeShape, targets: Sequence[int]) -> int:
        states = np.array([-1, *targets], np.int32)
        moves = states[shape.short]
        if shape.long:
            ends = [targets[number] for digits in shape.long for number in digits.numbers]
            state = self._partial(
                {
                    digits.high: self._partial(states[digits.slots], [targets[number] for number in digits.numbers])
                    for digits in shape.long
                },
                ends,
            )
            for _ in range(2):
                state = self._partial({ord("0"): state}, ends)
            moves[ord("u")] = state
        return self._partial(moves, targets)

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

    def _escaped_rest(self, rests: tuple[tuple[tuple[Element, ...], int], ...]) -> int:
        """The state inside an escape from which one of `rests` must follow."""
        known = self._escaped_rests.get(rests)
        if known is None:
            options: dict[int, list[tuple[tuple[Element, ...], int]]] = {}
            for (element, *rest), target in rests:
                for byte in element_bytes(element):
                    options.setdefault(byte, []).append((tuple(rest), target))
            moves = {
                byte: parts[0][1] if not parts[0][0] else self._escaped_rest(tuple(parts))
                for byte, parts in options.items()
            }
            self._builder.spend(len(rests))
            known = self._escaped_rests[rests] = self._partial(moves, [target for _, target in rests])
        return known

    def _partial(self, targets: dict[int, int] | NDArray[np.int32], ends: Iterable[int]) -> int:
        return self._builder.state(row=self._builder.row(targets), op=self._op_before(ends))


_COMMON = charset.subtract(ALL, charset.of(RARE))
UNESCAPED = charset.subtract(_COMMON, charset.union(charset.make([(0, 0x1F)]), charset.of('"\\\u2028\u2029')))
"""Characters that a JSON string holds as they are, but for the two line ends that `.` does not match, and for RARE."""


def _arrival_guards(automaton: CharacterAutomaton, lengths: Interval) -> list[tuple[Interval, ...]]:
    """Per state: the register values before counting with which it may be entered after a character.

    With c characters read after counting, a state may be entered exactly if it accepts some continuation of r
    characters with minimum <= c + r <= maximum. Raises LimitExceededError when the table would be too large.
    """
    minimum, maximum = lengths
    if automaton == ANY_TEXT:
        # However large the counts: any text can go on as long as the maximum lets it.
        return [((0, maximum if maximum == UNBOUNDED else maximum - 1),)] if maximum else [()]
    many = automaton.many_states
    # Without a maximum, a state with any long enough continuation has one less than `many` characters longer.
    horizon = minimum + many if maximum == UNBOUNDED else maximum
    remaining = _accepting_lengths(automaton, horizon + 1)
    registers = np.arange(minimum + 1 if maximum == UNBOUNDED else maximum)
    guards: list[tuple[Interval, ...]] = []
    for state in range(many):
        accepted = remaining[:, state]
        if maximum == UNBOUNDED:
            intervals = _runs(registers + 1 + np.flatnonzero(accepted).max(initial=-1) >= minimum)
            # The register saturates at the minimum.
            guards.append(tuple((low, UNBOUNDED if high == minimum else high) for low, high in intervals))
            continue
        sums = np.concatenate([[0], np.cumsum(accepted)])
        low = np.maximum(minimum - registers - 1, 0)
        guards.append(tuple(_runs(sums[maximum - registers] > sums[np.minimum(low, maximum - registers)])))
    return guards


def has_length(automaton: CharacterAutomaton, lengths: Interval) -> bool:
    """Whether the automaton accepts any text of between `lengths[0]` and `lengths[1]` characters."""
    minimum, maximum = lengths
    if minimum == 0 and maximum == UNBOUNDED:
        return not automaton.is_empty
    if automaton == ANY_TEXT:
        return minimum <= maximum
    if automaton.accepting[0] and minimum == 0:
        return True
    horizon = minimum + automaton.many_states if maximum == UNBOUNDED else maximum
    return bool(_accepting_lengths(automaton, horizon + 1)[minimum:, 0].any())


def _accepting_lengths(automaton: CharacterAutomaton, horizon: int) -> NDArray[np.bool_]:
    """bool [horizon, states]: whether a state accepts some continuation of exactly r characters.

    Rows are a function of the row before, so they become periodic; the period is found and repeated.
    """
    if automaton.many_states * horizon > _MAX_LENGTH_TABLE:
        raise LimitExceededError(f"a length of {horizon - 1} characters is too large beside this pattern")
    sources: list[int] = [0] * automaton.many_states
    for state in range(automaton.many_states):
        for target in automaton.row(state)[0]:
            sources[target] |= 1 << state
    current = sum(1 << state for state, accepts in enumerate(automaton.accepting) if accepts)
    seen: dict[int, int] = {}
    rows: list[int] = []
    while current not in seen and len(rows) < horizon:
        seen[current] = len(rows)
        rows.append(current)
        following = 0
        for state, source in enumerate(sources):
            if current >> state & 1:
                following |= source
        current = following
    table = np.array([[row >> state & 1 for state in range(len(sources))] for row in rows], bool)
    if len(rows) == horizon:
        return table
    start = seen[current]
    period = len(rows) - start
    index = np.arange(horizon)
    return table[np.where(index < len(rows), index, start + (index - start) % period)]


def _runs(flags: NDArray[np.bool_]) -> list[Interval]:
    """Inclusive index intervals of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(first), int(last) - 1) for first, last in edges.reshape(-1, 2)]
