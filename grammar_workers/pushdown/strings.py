"""Lowers character automata to pushdown automaton states: as raw text in UTF-8, or as the body of a JSON string.

Lengths are counted in the counter, never unrolled: for each state of the character automaton, the counter values from
which some accepting continuation still fits are worked out ahead, and guard the moves into that state.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.reached import sources_of
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.errors import LimitExceededError
from grammar_workers.memo import memoized
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Guard, Interval, union_guards
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.escapes import ESCAPED
from grammar_workers.pushdown.json_text import split_characters
from grammar_workers.pushdown.string_moves import StringMoves

_MAX_LENGTH_TABLE = 100_000_000
"""Moves that are looked at, which take a second at most."""
_ROW_COST = 500
"""A row of that table takes as long as so many moves, however short it is."""
_RUN_WORTH = 3
"""Characters: from there on a walk takes many subtrees as a whole."""


class StringLowering:
    """Lowers automata into one builder; the states of partial characters are shared between all of them.

    `any_escape` lets strings spell characters in any way that JSON has.
    """

    def __init__(self, builder: PushdownBuilder, *, any_escape: bool = False) -> None:
        self._builder = builder
        self._rows = StringMoves(builder)
        self.any_escape = any_escape

    def raw_states(self, automaton: Dfa, known: Mapping[int, int]) -> list[int]:
        """Return states that read the automaton's language as UTF-8, the first one first.

        Accepting ones carry exit label 0. There is one for each state of the automaton; one whose label is in `known`
        is that state.
        """
        numbers = [known[label] if label in known else self._builder.state() for label in automaton.accepting]
        loops = [0] * len(numbers)
        # A known state may forbid more than the automaton does.
        if not known:
            for state, run in _runs_worth(automaton.tolerated_runs(UNESCAPED, code.TOLERATED_RUN)):
                loops[state] = self._builder.loop(base=code.TOLERATES_UNESCAPED, run=run)
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

    @memoized
    def json_string(self, automaton: Dfa, closed: tuple[int, ...], guards: tuple[Guard, ...] = ()) -> int:
        """States that read the rest of a JSON string after its opening quote. Returns the first.

        `closed[state]` is where the closing quote leads from an accepting state of the automaton. The counter is left
        alone and must pass `guards[state]` on entering a state.
        """
        guards = guards or ((),) * automaton.many_states
        ops = [self._builder.op(guard=guard) if guard else 0 for guard in guards]
        closings = [closing if label else -1 for closing, label in zip(closed, automaton.accepting, strict=True)]
        states = self._string_states(automaton, closings, guards, ops)
        # What is precomputed per vocabulary holds for the canonical spellings only.
        if not self.any_escape:
            loops = self._tolerance(automaton, guards, counted=False)
            for state in automaton.free_states:
                if closings[state] != -1:
                    loops[state] = self._builder.loop()
            self._builder.fill_states(states, {code.STATE_LOOP: loops})
        return states

    @memoized
    def counted_json_string(self, automaton: Dfa, *by_label: tuple[tuple[int, Guard], ...]) -> int:
        """Return the first state where the counter counts characters from 0 and the quote returns to the caller.

        A text that the automaton labels i returns with label n if its length passes the guard that stands beside n in
        `by_label[i - 1]`; these exclude each other.
        """
        builder, lengths = self._builder, list(map(dict, by_label))
        endings = [tuple(itertools.chain.from_iterable(guards.values())) for guards in lengths]
        guards = _arrival_guards(automaton, endings)
        cap = _cap(itertools.chain.from_iterable(endings))
        ops = [builder.op(guard=guard, increment_to=cap) for guard in guards]
        closing = [-1, *(self._returns(guards) if guards else -1 for guards in lengths)]
        closings = [closing[label] for label in automaton.accepting]
        states = self._string_states(automaton, closings, guards, ops)
        loops = [0] * automaton.many_states
        if not self.any_escape:
            loops = self._tolerance(automaton, guards, counted=True)
            for state in automaton.free_states:
                ending = endings[automaton.accepting[state] - 1]
                # Of a free string it is known in advance what may come behind the quote: no length may change that.
                if closings[state] != -1 and len(ending) == 1:
                    loops[state] = builder.loop(ending[0][0], -1 if ending[0][1] == UNBOUNDED else ending[0][1])
            builder.fill_states(states, {code.STATE_LOOP: loops})
        # Entering the first state after a character counts, entering it after the opening quote must not.
        return builder.state(row=builder.row_of(states), loop=loops[0])

    def _string_states(
        self, automaton: Dfa, closings: Sequence[int], guards: Sequence[Guard], ops: Sequence[int]
    ) -> int:
        """The states inside of a string, one for each state of the automaton."""
        builder = self._builder
        begin = builder.empty_states(automaton.many_states)
        self._rows.set_guards((begin + state, guard) for state, guard in enumerate(guards) if guard)
        states = range(begin, begin + automaton.many_states)
        rows = builder.rows(self._rows.in_string(automaton, states, closings, any_escape=self.any_escape))
        builder.fill_states(begin, {code.STATE_ROW: rows, code.STATE_INSTRUCTION: ops})
        return begin

    def _returns(self, lengths: Mapping[int, Guard]) -> int:
        """The state that returns with the label of the guard that the counter passes."""
        builder = self._builder
        *others, (label, guard) = lengths.items()
        state = builder.state(op=builder.return_(label, guard=guard))
        for label, guard in others:
            builder.note_label(label)
            state = builder.state(op=builder.otherwise(state, guard=guard), exit_label=label)
        return state

    def rows_beside(self, automaton: Dfa, body: int, text: bytes) -> list[int]:
        """For each byte of `text`, part of a JSON string, the row that reads every other byte in its place.

        `body` is the state that `json_string` gave for `automaton`, whose every character leads from its only state
        back to it. Between two characters that is the row of `body`; inside of one only the bytes of other characters
        may follow.
        """
        outside = self._builder.row_of(body)
        rows: list[int] = []
        for spelling in split_characters(text):
            rows += [outside, *self._rows.inside(automaton, body, spelling)]
        return rows

    def _tolerance(self, automaton: Dfa, guards: Sequence[Guard], *, counted: bool) -> list[int]:
        """Per state: the loop number that says which characters it tolerates, whatever they lead to; 0 for none."""
        result = [0] * automaton.many_states
        if counted:
            # Every state must let the counter pass, so the narrowest interval counts.
            if any(len(guard) != 1 or guard == NEVER for guard in guards):
                return result
            highest = min(guard[0][1] for guard in guards)
            bounds = [(max(guard[0][0] for guard in guards), -1 if highest == UNBOUNDED else highest)] * len(result)
        elif len(set(guards)) == 1:
            bounds = [(0, -1)] * len(result)
        else:
            bounds = [(low, -1) for low in _lowest_counters(automaton, guards)]
        runs = automaton.tolerated_runs(COMMON, code.TOLERATED_RUN)
        unescaped = automaton.tolerated_runs(UNESCAPED, code.TOLERATED_RUN)
        longer = unescaped > runs
        for state, run in _runs_worth(np.where(longer, unescaped, runs)):
            if bounds[state][0] < UNBOUNDED:
                base = code.TOLERATES_UNESCAPED if longer[state] else code.TOLERATES_ANY
                result[state] = self._builder.loop(*bounds[state], base, run)
        return result


def _runs_worth(runs: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The states that tolerate runs as long as most tokens, and their runs."""
    states = np.flatnonzero(runs >= _RUN_WORTH)
    return list(zip(states.tolist(), runs[states].tolist(), strict=True))


def _lowest_counters(automaton: Dfa, guards: Sequence[Guard]) -> list[int]:
    """Per state: from which counter on every state that can be reached lets it pass; UNBOUNDED for none."""
    lowest = np.zeros(len(guards) + 1, np.int64)
    for state, guard in enumerate(guards):
        if guard:
            lowest[state] = guard[0][0] if len(guard) == 1 and guard[0][1] == UNBOUNDED else UNBOUNDED
    while True:
        # The last entry stands for the dead state -1.
        raised = np.maximum(lowest[:-1], lowest[automaton.distinct_moves].max(axis=1, initial=0))
        if np.array_equal(raised, lowest[:-1]):
            return raised.tolist()
        lowest[:-1] = raised


COMMON = charset.subtract(ALL, charset.of(code.RARE))
UNESCAPED = charset.subtract(COMMON, charset.union(ESCAPED, charset.of("\u2028\u2029")))
"""Characters that a JSON string holds as they are, but for the two line ends that `.` does not match, and for RARE."""


def _cap(intervals: Iterable[Interval]) -> int:
    """How far characters must be counted to tell whether a length is in each of these intervals, or beyond all."""
    bounds = list(intervals)
    is_open = any(high == UNBOUNDED for _, high in bounds)
    return max(low if high == UNBOUNDED else high + is_open for low, high in bounds)


def _arrival_guards(automaton: Dfa, endings: Sequence[Sequence[Interval]]) -> list[Guard]:
    """Per state: the counter values before counting with which it may be entered after a character.

    A text of label i may end with a length in one of the intervals `endings[i - 1]`. Raises LimitExceededError when the
    table of lengths would be too large.
    """
    found: list[list[Interval]] = [[] for _ in range(automaton.many_states)]
    for label, ending in enumerate(endings, 1):
        for lengths in ending:
            for state, arrivals in enumerate(_arrivals(automaton, label, lengths)):
                found[state] += arrivals
    return [union_guards([tuple(arrivals)]) if arrivals else NEVER for arrivals in found]


def _arrivals(automaton: Dfa, label: int, lengths: Interval) -> Sequence[Sequence[Interval]]:
    """The same for texts of one label, with lengths in one interval; () where a state may not be entered.

    With c characters read after counting, a state may be entered exactly if it accepts some continuation of r
    characters with minimum <= c + r <= maximum.
    """
    nearest, furthest = _ends(automaton, label)
    # A bound that every text with the label keeps needs no guard.
    minimum = lengths[0] if lengths[0] > nearest[0] else 0
    maximum = lengths[1] if lengths[1] < furthest[0] else UNBOUNDED
    if minimum == 0 or maximum == UNBOUNDED or _is_dense(automaton, label, maximum - minimum):
        lows = [max(minimum - 1 - most, 0) for most in furthest]
        highs = [UNBOUNDED if maximum == UNBOUNDED else maximum - 1 - fewest for fewest in nearest]
        found = zip(lows, highs, nearest, strict=True)
        return [[(low, high)] if fewest >= 0 and low <= high else [] for low, high, fewest in found]
    fitting = _fitting(automaton, label, (minimum, maximum))[1:]
    borders = np.diff(fitting.T, prepend=False, append=False, axis=1)
    return [[(first, end - 1) for first, end in np.flatnonzero(row).reshape(-1, 2).tolist()] for row in borders]


def has_length(automaton: Dfa, lengths: Interval, label: int | None = None) -> bool:
    """Whether the automaton accepts any text (with `label`) of between `lengths[0]` and `lengths[1]` characters."""
    minimum, maximum = lengths
    fewest, most = (ends[0] for ends in _ends(automaton, label))
    if minimum <= fewest <= maximum or minimum <= most <= maximum:
        return True
    return fewest < minimum <= maximum < most and (
        _is_dense(automaton, label, maximum - minimum) or bool(_fitting(automaton, label, lengths)[0, 0])
    )


@functools.lru_cache(maxsize=64)
def _ends(automaton: Dfa, label: int | None) -> tuple[list[int], list[int]]:
    """Return per state the fewest and the most characters to where a text (with `label`) may end.

    Both are -1 for a state that leads to no such end. The most are UNBOUNDED where a cycle lies on the way.
    """
    successors = automaton.successors
    preceding = sources_of(successors)
    nearest = [0 if accepted and label in (None, accepted) else -1 for accepted in automaton.accepting]
    found = [state for state, fewest in enumerate(nearest) if fewest == 0]
    for state in found:
        for source in preceding[state]:
            if nearest[source] < 0:
                nearest[source] = nearest[state] + 1
                found.append(source)
    # States follow the last of their successors; those on a cycle, or before one, are never reached.
    waiting = [sum(nearest[target] >= 0 for target in targets) for targets in successors]
    furthest = [UNBOUNDED if many else fewest for many, fewest in zip(waiting, nearest, strict=True)]
    found = [state for state in found if not waiting[state]]
    for state in found:
        for source in preceding[state]:
            waiting[source] -= 1
            if not waiting[source]:
                furthest[source] = furthest[state] + 1
                found.append(source)
    return nearest, furthest


def _is_dense(automaton: Dfa, label: int | None, room: int) -> bool:
    """Return whether gaps between the numbers of characters to an end are `room` numbers wide at most in each state.

    A state has the numbers of its successors plus 1, and 0 where a text may end. So it is surely true if the intervals
    from the fewest to the most of the successors leave no wider gap in any state; else False is returned.
    """
    nearest, furthest = _ends(automaton, label)
    for reached, targets in zip(nearest, automaton.successors, strict=True):
        for begin, end in sorted((nearest[target], furthest[target]) for target in targets if nearest[target] >= 0):
            if begin - reached > room:
                return False
            reached = max(reached, end + 1)
    return True


def _fitting(automaton: Dfa, label: int | None, lengths: Interval) -> NDArray[np.bool_]:
    """Return whether a text that has led to a state can go on to an end (with `label`) whose length is in `lengths`.

    Returns:
        bool [lengths[1] + 1, states], by the characters that have been read.

    Raises:
        LimitExceededError: The table would be too large.
    """
    minimum, maximum = lengths
    moves = automaton.distinct_moves
    if (_ROW_COST + moves.size) * maximum > _MAX_LENGTH_TABLE:
        raise LimitExceededError(
            f"lengths up to {maximum} characters are too large (fixed limit) beside a pattern of {len(moves)} states "
            "that leaves out lengths in between; use a smaller maxLength, smaller counts, or only one of minLength and "
            "maxLength"
        )
    # The last entry stands for the dead state -1.
    accepted = np.array([*_ends(automaton, label)[0], DEAD]) == 0
    rows = [accepted]
    for length in range(maximum - 1, -1, -1):
        onwards = np.append(rows[-1][moves].any(axis=1), False)
        rows.append(onwards | accepted if length >= minimum else onwards)
    return np.array(rows[::-1])[:, :-1]
