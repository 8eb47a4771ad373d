"""Lowers character automata to machine states: as raw text in UTF-8, or as the body of a JSON string.

Lengths are counted in the register, never unrolled: for each state of the character automaton, the register values from
which some accepting continuation still fits are worked out ahead, and guard the moves into that state.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers import charset
from grammar_workers.character_automaton import CharacterAutomaton
from grammar_workers.charset import ALL
from grammar_workers.errors import LimitExceededError
from grammar_workers.escape_spelling import Element, element_bytes, escape_sequences
from grammar_workers.json_text import SHORT_ESCAPES
from grammar_workers.kernels import INHERIT, TOLERATES_ANY, TOLERATES_UNESCAPED
from grammar_workers.machine import NEVER, UNBOUNDED, Interval, union_guards
from grammar_workers.machine_builder import MachineBuilder
from grammar_workers.machine_fragment import OUTSIDE, shared
from grammar_workers.string_slice import LONGEST_RUN, RARE

ANY_TEXT = CharacterAutomaton((0,), ((0,),), (True,))
"""Every text."""

_BACKSLASH, _QUOTE = 0x5C, 0x22
_MAX_LENGTH_TABLE = 50_000_000
_SHARED_STATES = 12
"""Automata with fewer states are cheaper to lay out than to copy."""
_ESCAPES = {ord(character): byte for character, byte in SHORT_ESCAPES.items()}
_Ranges = tuple[tuple[int, int, int], ...]
"""(first, last, machine state) per run of characters."""
_Read = TypeVar("_Read")
_Sequence = tuple[tuple[int, int], ...]
"""Inclusive byte ranges of the (remaining) bytes of UTF-8 characters."""


class StringMachine:
    """Lowers automata into one builder; the states of partial characters are shared between all of them.

    `any_escape` lets strings spell characters in any way that JSON has.
    """

    def __init__(self, builder: MachineBuilder, *, any_escape: bool = False) -> None:
        self._builder = builder
        self.any_escape = any_escape
        self._escaped_rests: dict[tuple[tuple[tuple[Element, ...], int], ...], int] = {}
        self._guard_of: dict[int, tuple[Interval, ...]] = {}
        self._continuations: dict[tuple[tuple[_Sequence, int], ...], int] = {}
        self._rules: dict[tuple[tuple[_Sequence, int], ...], int] = {}
        self._returns: dict[int, int] = {}
        self._escape_rules: dict[tuple[tuple[int, int], ...], int] = {}
        self._escape_states: dict[tuple[tuple[int, int], ...], int] = {}
        self._json_strings: dict[Hashable, int] = {}
        self._lead_cache: dict[_Ranges, dict[int, int]] = {}

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
        targets: dict[int, int] = {}
        multi: list[tuple[int, int, int]] = []
        for first, last, number in ranges:
            for byte in range(first, min(last, 0x7F) + 1):
                targets[byte] = number
            if last >= 0x80:
                multi.append((max(first, 0x80), last, number))
        targets |= self._lead_bytes(tuple(multi))
        self._builder.spend(len(targets) + 1)
        return self._builder.row(targets)

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
            if guards or self.any_escape or len(automaton.moves) < _SHARED_STATES:
                known = self._json_string(automaton, closed, lengths, guards)
            else:
                known = self._shared_json_string(automaton, closed, lengths)
            self._json_strings[identity] = known
        return known

    def _shared_json_string(self, automaton: CharacterAutomaton, closed: Sequence[int], lengths: Interval) -> int:
        """Formats and long patterns are laid out once for all machines of this process."""
        closings = [closing if accepts else -1 for closing, accepts in zip(closed, automaton.accepting, strict=True)]
        outside = [closing for closing in dict.fromkeys(closings) if closing != -1]
        numbers = {-1: -1, **{closing: OUTSIDE - index for index, closing in enumerate(outside)}}
        inside = tuple(numbers[closing] for closing in closings)

        def build(scratch: MachineBuilder) -> list[int]:
            return [StringMachine(scratch)._json_string(automaton, inside, lengths, ())]

        return int(shared(self._builder, ("string", automaton, inside, lengths), build, outside)[0])

    def _json_string(
        self,
        automaton: CharacterAutomaton,
        closed: Sequence[int],
        lengths: Interval,
        guards: Sequence[tuple[Interval, ...]],
    ) -> int:
        builder = self._builder
        numbers = [builder.state() for _ in automaton.moves]
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
        dense = np.full(256, -1, np.int32)
        multi: list[tuple[int, int, int]] = []
        escaped: dict[int, int] = {}
        ranges = automaton.ranges(state)
        for first, last, target in ranges:
            number = numbers[target]
            if first < 0x80:
                dense[max(first, 0x20) : min(last, 0x7F) + 1] = number
                escaped.update((code, number) for code in _SPECIAL if first <= code <= last)
            if last >= 0x80:
                multi.append((max(first, 0x80), last, number))
        for byte, lead in self._lead_bytes(tuple(multi)).items():
            dense[byte] = lead
        if self.any_escape:
            dense[_BACKSLASH] = self._every_escape([(a, b, numbers[target]) for a, b, target in ranges])
        elif escaped:
            dense[_BACKSLASH] = self._escape(escaped)
        dense[_QUOTE] = closing
        self._builder.spend(64)
        return self._builder.row(dense), ranges == [(low, high, state) for low, high in ALL]

    def _op_before(self, targets: Iterable[int]) -> int:
        """The op of a state inside a character: no character may begin unless one of its ends may be entered."""
        guard = union_guards([self._guard_of.get(target, ()) for target in targets])
        return self._builder.op(guard=guard) if guard else 0

    def _lead_bytes(self, ranges: _Ranges) -> dict[int, int]:
        """Lead byte -> state, for characters from U+0080 on."""
        if not ranges:
            return {}
        leads = self._lead_cache.get(ranges)
        if leads is None:
            sequences = [
                (sequence, target) for first, last, target in ranges for sequence in utf8_sequences(first, last)
            ]
            leads = self._lead_cache[ranges] = self._after_byte(sequences)
        return leads

    def _after_byte(self, sequences: Iterable[tuple[_Sequence, int]]) -> dict[int, int]:
        targets, shape = _numbered(sequences)
        after: dict[int, int] = {}
        for options, read in _by_first_byte(shape):
            named = tuple((rest, targets[number]) for rest, number in options)
            after.update(dict.fromkeys(read, named[0][1] if not named[0][0] else self._continuation(named)))
        self._builder.spend(len(after))
        return after

    def _continuation(self, rests: tuple[tuple[_Sequence, int], ...]) -> int:
        """The state inside a character, from which one of `rests` must follow."""
        known = self._continuations.get(rests)
        if known is None:
            targets, shape = _numbered(rests)
            if self._is_guarded_alike(targets):
                rule = self._rules.get(shape)
                if rule is None:
                    ends = ((rest, self._done(number)) for rest, number in shape)
                    rule = self._rules[shape] = self._builder.state(row=self._builder.row(self._after_byte(ends)))
                known = self._called(rule, targets)
            else:
                known = self._partial(self._after_byte(rests), targets)
            self._continuations[rests] = known
        return known

    def _is_guarded_alike(self, targets: Iterable[int]) -> bool:
        """Whether all of these states may be entered at the same time, so that a rule that knows nothing of them may
        read the bytes that lead to them, and return with a label for each.

        A handful of such rules serves all states, whatever characters they tell apart.
        """
        return len({self._guard_of.get(target, ()) for target in targets}) == 1

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

    def _escape(self, escaped: dict[int, int]) -> int:
        """The state after a backslash; `escaped` maps the characters that have no raw spelling to states."""
        identity = tuple(sorted(escaped.items()))
        known = self._escape_states.get(identity)
        if known is None:
            targets, shape = _numbered(identity)
            if self._is_guarded_alike(targets):
                rule = self._escape_rules.get(shape)
                if rule is None:
                    ends = {code: self._done(number) for code, number in shape}
                    rule = self._escape_rules[shape] = self._escape_table(ends)
                known = self._called(rule, targets)
            else:
                known = self._escape_table(escaped)
            self._escape_states[identity] = known
        return known

    def _escape_table(self, escaped: dict[int, int]) -> int:
        moves = {_ESCAPES[code]: target for code, target in escaped.items() if code in _ESCAPES}
        by_digits: dict[int, dict[int, int]] = {}
        for code, target in escaped.items():
            if code not in _ESCAPES:
                high, low = f"{code:02x}".encode()
                by_digits.setdefault(high, {})[low] = target
        if by_digits:
            digits = {high: self._partial(lows, lows.values()) for high, lows in by_digits.items()}
            ends = [target for lows in by_digits.values() for target in lows.values()]
            zero = self._partial({ord("0"): self._partial(digits, ends)}, ends)
            moves[ord("u")] = self._partial({ord("0"): zero}, ends)
        return self._partial(moves, escaped.values())

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
        for code, byte in (*_ESCAPES.items(), (ord("/"), ord("/"))):
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

    def _partial(self, targets: dict[int, int], ends: Iterable[int]) -> int:
        return self._builder.state(row=self._builder.row(targets), op=self._op_before(ends))


def _numbered(targets: Iterable[tuple[_Read, int]]) -> tuple[list[int], tuple[tuple[_Read, int], ...]]:
    """The distinct targets of what is read, and the same with the number of each target in its place."""
    numbers: dict[int, int] = {}
    shape = tuple((read, numbers.setdefault(target, len(numbers))) for read, target in targets)
    return list(numbers), shape


_COMMON = charset.subtract(ALL, charset.of(RARE))
UNESCAPED = charset.subtract(_COMMON, charset.union(charset.make([(0, 0x1F)]), charset.of('"\\\u2028\u2029')))
"""Characters that a JSON string holds as they are, but for the two line ends that `.` does not match, and for RARE."""
_SPECIAL = (*range(0x20), _QUOTE, _BACKSLASH)


def _arrival_guards(automaton: CharacterAutomaton, lengths: Interval) -> list[tuple[Interval, ...]]:
    """Per state: the register values before counting with which it may be entered after a character.

    With c characters read after counting, a state may be entered exactly if it accepts some continuation of r
    characters with minimum <= c + r <= maximum. Raises LimitExceededError when the table would be too large.
    """
    minimum, maximum = lengths
    if automaton == ANY_TEXT:
        # However large the counts: any text can go on as long as the maximum lets it.
        return [((0, maximum if maximum == UNBOUNDED else maximum - 1),)] if maximum else [()]
    many = len(automaton.moves)
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
    horizon = minimum + len(automaton.moves) if maximum == UNBOUNDED else maximum
    return bool(_accepting_lengths(automaton, horizon + 1)[minimum:, 0].any())


def _accepting_lengths(automaton: CharacterAutomaton, horizon: int) -> NDArray[np.bool_]:
    """bool [horizon, states]: whether a state accepts some continuation of exactly r characters.

    Rows are a function of the row before, so they become periodic; the period is found and repeated.
    """
    if len(automaton.moves) * horizon > _MAX_LENGTH_TABLE:
        raise LimitExceededError(f"a length of {horizon - 1} characters is too large beside this pattern")
    sources: list[int] = [0] * len(automaton.moves)
    for state in range(len(automaton.moves)):
        for _, _, target in automaton.ranges(state):
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


@functools.lru_cache(maxsize=1024)
def _by_first_byte(
    sequences: tuple[tuple[_Sequence, int], ...],
) -> list[tuple[tuple[tuple[_Sequence, int], ...], list[int]]]:
    """What may follow a first byte (the rests of the sequences with their numbers), and the bytes it follows.

    The same few sets of characters occur in every schema.
    """
    by_byte: dict[int, list[tuple[_Sequence, int]]] = {}
    for (bounds, *rest), number in sequences:
        for byte in range(bounds[0], bounds[1] + 1):
            by_byte.setdefault(byte, []).append((tuple(rest), number))
    groups: dict[tuple[tuple[_Sequence, int], ...], list[int]] = {}
    for byte, options in by_byte.items():
        groups.setdefault(tuple(options), []).append(byte)
    return list(groups.items())


@functools.lru_cache(maxsize=4096)
def utf8_sequences(first: int, last: int) -> list[tuple[tuple[int, int], ...]]:
    """The code points first..last (no surrogates between) as sequences of inclusive byte ranges.

    Splits at the borders of encoded length, then where leading bytes change (Cox, "Regular expression matching in the
    wild", 2010).
    """
    for border in (0x7F, 0x7FF, 0xFFFF):
        if first <= border < last:
            return utf8_sequences(first, border) + utf8_sequences(border + 1, last)
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if first >> bits != last >> bits and last > 0x7F:
            if first & mask:
                return utf8_sequences(first, first | mask) + utf8_sequences((first | mask) + 1, last)
            if last & mask != mask:
                return utf8_sequences(first, (last & ~mask) - 1) + utf8_sequences(last & ~mask, last)
    return [tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))]
