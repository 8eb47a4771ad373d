"""Lowers character automata to pushdown automaton states: as raw text in UTF-8, or as the body of a JSON string.

Lengths are counted in the counter, never unrolled: for each state of the character automaton, the counter values from
which some accepting continuation still fits are worked out ahead, and guard the moves into that state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL
from grammar_workers.dfa.dfa import ANY_TEXT, Dfa
from grammar_workers.errors import LimitExceededError
from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Guard, Interval
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.escapes import ESCAPED
from grammar_workers.pushdown.instructions import (
    RARE,
    STATE_INSTRUCTION,
    STATE_LOOP,
    STATE_ROW,
    TOLERATED_RUN,
    TOLERATES_ANY,
    TOLERATES_UNESCAPED,
)
from grammar_workers.pushdown.json_text import split_characters
from grammar_workers.pushdown.resumption import resumed
from grammar_workers.pushdown.string_moves import StringMoves

_MAX_LENGTH_TABLE = 50_000_000
_BLOCK = 1 << 20
"""Entries of that table that are looked at together."""


class StringLowering:
    """Lowers automata into one builder; the states of partial characters are shared between all of them.

    `any_escape` lets strings spell characters in any way that JSON has.
    """

    def __init__(self, builder: PushdownBuilder, *, any_escape: bool = False) -> None:
        self._builder = builder
        self._rows = StringMoves(builder)
        self.any_escape = any_escape
        self._json_strings: dict[Hashable, int] = {}
        self._rows_inside: dict[tuple[int, bytes], list[int]] = {}

    def resumed(self, builder: PushdownBuilder) -> StringLowering:
        """One that knows what this one has lowered, for a builder that goes on from the builder of this one."""
        return resumed(self, _builder=builder, _rows=resumed(self._rows, _builder=builder))

    def raw_text(self, automaton: Dfa) -> int:
        """States that read the automaton's language as UTF-8; accepting ones carry exit label 0. Returns the first."""
        return self.raw_states(automaton, {})[0]

    def raw_states(self, automaton: Dfa, known: Mapping[int, int]) -> list[int]:
        """The same for each state of the automaton; one whose label is in `known` is that state."""
        numbers = [known[label] if label in known else self._builder.state() for label in automaton.accepting]
        loops = [0] * len(numbers)
        # A known state may forbid more than the automaton does.
        for state in automaton.tolerant_states(UNESCAPED, TOLERATED_RUN) if not known else ():
            loops[state] = self._builder.loop(base=TOLERATES_UNESCAPED)
        rows = self._builder.rows(self._rows.in_text(automaton, numbers))
        for number, label, row, loop in zip(numbers, automaton.accepting, rows, loops, strict=True):
            if label not in known:
                self._builder.fill(number, row=row, exit_label=0 if label else -1, loop=loop)
        return numbers

    def raw_row(self, ranges: Iterable[tuple[int, int, int]]) -> int:
        """The dense row of a state outside of JSON: (first character, last character, state) in UTF-8."""
        row = self._rows.row(ranges)
        self._builder.spend(int(np.count_nonzero(row >= 0)) + 1)
        return self._builder.row(row)

    def json_string(
        self,
        automaton: Dfa,
        closed: Sequence[int],
        lengths: Interval = (0, UNBOUNDED),
        guards: Sequence[Guard] = (),
    ) -> int:
        """States that read the rest of a JSON string after its opening quote. Returns the first.

        `closed[state]` is where the closing quote leads from an accepting state of the automaton. With `lengths`, the
        counter counts characters from 0 and must end within these bounds; without, it is left alone and must pass
        `guards[state]` on entering a state.
        """
        identity = (automaton, tuple(closed), lengths, tuple(guards))
        known = self._json_strings.get(identity)
        if known is None:
            known = self._json_strings[identity] = self._json_string(automaton, closed, lengths, guards)
        return known

    def _json_string(self, automaton: Dfa, closed: Sequence[int], lengths: Interval, guards: Sequence[Guard]) -> int:
        builder = self._builder
        many = automaton.many_states
        begin = builder.empty_states(many)
        ops = [0] * many
        counted = lengths != (0, UNBOUNDED)
        if counted:
            cap = lengths[0] if lengths[1] == UNBOUNDED else lengths[1]
            guards = [entry or NEVER for entry in _arrival_guards(automaton, lengths)]
            ops = [builder.op(guard=guard, increment_to=cap) for guard in guards]
        elif guards:
            ops = [builder.op(guard=guard) if guard else 0 for guard in guards]
        self._rows.set_guards(enumerate(guards, begin))
        closings = [closing if label else -1 for closing, label in zip(closed, automaton.accepting, strict=True)]
        if counted:
            within = {
                closing: builder.state(op=builder.goto(closing, guard=[lengths]))
                for closing in dict.fromkeys(closings)
                if closing != -1
            }
            closings = [within.get(closing, -1) for closing in closings]
        dense = self._rows.in_string(automaton, range(begin, begin + many), closings, any_escape=self.any_escape)
        rows = builder.rows(dense)
        # What is precomputed per vocabulary holds for the canonical spellings only.
        loops = [0] * many if self.any_escape else self._loops(automaton, closings, lengths, guards)
        builder.fill_states(begin, {STATE_ROW: rows, STATE_INSTRUCTION: ops, STATE_LOOP: loops})
        # Entering the first state after a character counts, entering it after the opening quote must not.
        return builder.state(row=rows[0], loop=loops[0]) if counted else begin

    def rows_beside(self, automaton: Dfa, body: int, text: bytes) -> list[int]:
        """For each byte of `text`, part of a JSON string, the row that reads every other byte in its place.

        `body` is the state that `json_string` gave for `automaton`, whose every character leads from its only state
        back to it. Between two characters that is the row of `body`; inside of one only the bytes of other characters
        may follow.
        """
        outside = self._builder.row_of(body)
        rows: list[int] = []
        for spelling in split_characters(text):
            known = self._rows_inside.get((body, spelling))
            if known is None:
                known = self._rows_inside[body, spelling] = self._rows.inside(automaton, body, spelling)
            rows += [outside, *known]
        return rows

    def _loops(self, automaton: Dfa, closings: Sequence[int], lengths: Interval, guards: Sequence[Guard]) -> list[int]:
        """Per state: the loop number of a free string, or what says which characters it tolerates; 0 for neither."""
        loops = self._tolerance(automaton, guards, lengths != (0, UNBOUNDED))
        for state in automaton.free_states:
            if closings[state] != -1:
                loops[state] = self._builder.loop(lengths[0], -1 if lengths[1] == UNBOUNDED else lengths[1])
        return loops

    def _tolerance(self, automaton: Dfa, guards: Sequence[Guard], counted: bool) -> list[int]:
        """Per state: the loop number that says which characters it tolerates, whatever they lead to; 0 for none."""
        result = [0] * automaton.many_states
        bounds = (0, -1)
        if counted:
            # Every state must let the counter pass, so the narrowest interval counts.
            if any(len(guard) != 1 or guard == NEVER for guard in guards):
                return result
            highest = min(guard[0][1] for guard in guards)
            bounds = (max(guard[0][0] for guard in guards), -1 if highest == UNBOUNDED else highest)
        elif len(set(guards)) > 1:
            return result
        for base, characters in ((TOLERATES_UNESCAPED, UNESCAPED), (TOLERATES_ANY, COMMON)):
            for state in automaton.tolerant_states(characters, TOLERATED_RUN):
                result[state] = self._builder.loop(*bounds, base)
        return result


COMMON = charset.subtract(ALL, charset.of(RARE))
UNESCAPED = charset.subtract(COMMON, charset.union(ESCAPED, charset.of("\u2028\u2029")))
"""Characters that a JSON string holds as they are, but for the two line ends that `.` does not match, and for RARE."""


def _arrival_guards(automaton: Dfa, lengths: Interval) -> list[Guard]:
    """Per state: the counter values before counting with which it may be entered after a character.

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
    if maximum == UNBOUNDED:
        furthest = np.where(remaining.any(axis=0), horizon - np.argmax(remaining[::-1], axis=0), -1)
        runs = _runs(np.arange(minimum + 1)[:, None] + 1 + furthest >= minimum)
        # The counter saturates at the minimum.
        return [tuple([(low, UNBOUNDED if high == minimum else high) for low, high in each]) for each in runs]
    left = maximum - np.arange(maximum)
    needed = np.minimum(np.maximum(minimum - np.arange(maximum) - 1, 0), left)
    guards: list[Guard] = []
    for block in np.array_split(remaining, 1 + remaining.size // _BLOCK, axis=1):
        sums = np.concatenate([np.zeros((1, block.shape[1]), np.int32), np.cumsum(block, axis=0, dtype=np.int32)])
        guards += map(tuple, _runs(sums[left] > sums[needed]))
    return guards


def has_length(automaton: Dfa, lengths: Interval) -> bool:
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


def _accepting_lengths(automaton: Dfa, horizon: int) -> NDArray[np.bool_]:
    """bool [horizon, states]: whether a state accepts some continuation of exactly r characters.

    Rows are a function of the row before, so they become periodic; the period is found and repeated.
    """
    if automaton.many_states * horizon > _MAX_LENGTH_TABLE:
        raise LimitExceededError(f"a length of {horizon - 1} characters is too large beside this pattern")
    sources: list[int] = [0] * automaton.many_states
    for state in range(automaton.many_states):
        for target in automaton.successors[state]:
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


def _runs(flags: NDArray[np.bool_]) -> list[list[Interval]]:
    """Inclusive index intervals of the runs of True in each column."""
    rows, columns = flags.shape
    padded = np.zeros((columns, rows + 2), np.int8)
    padded[:, 1:-1] = flags.T
    places, edges = np.nonzero(np.diff(padded, axis=1))
    runs: list[list[Interval]] = [[] for _ in range(columns)]
    for column, first, end in zip(places[::2].tolist(), edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        runs[column].append((first, end - 1))
    return runs
