"""Conversion of automata over characters to pushdown states: for plain UTF-8 text, or the contents of a JSON string.

If the length of a string is limited, the counter of the pushdown automaton counts its characters. For each state of the
character automaton, the module computes a range of counts from which the string can still get an allowed length. The
state may be entered only with a count in this range.
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
from grammar_workers.memo import fork, memoized
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Guard, Interval, union_guards
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.escapes import ESCAPED
from grammar_workers.pushdown.json_text import split_characters
from grammar_workers.pushdown.string_moves import StringMoves

# Maximum number of transitions in a table of lengths, about one second of work.
_MAX_LENGTH_TABLE = 100_000_000
# Additional cost of each row of that table, in transitions.
_ROW_COST = 500
# Minimum run of tolerated characters for which a loop is recorded. From this length on, a walk often takes whole
# subtrees.
_RUN_WORTH = 3


class StringLowering:
    """Converter of automata over characters to states of a pushdown automaton over bytes.

    All converted automata share the states that read the second and later bytes of a character.

    Args:
        builder: Builder to which the states are appended.
        any_escape: True: strings may contain all escapes of JSON. False: only the canonical encoding of each character.
    """

    def __init__(self, builder: PushdownBuilder, *, any_escape: bool = False) -> None:
        self._builder = builder
        self._rows = StringMoves(builder)
        self.any_escape = any_escape

    def fork(self, builder: PushdownBuilder) -> StringLowering:
        """Return a copy that extends `builder`, to which the states of this object's builder have been copied."""
        return fork(self, _builder=builder, _rows=fork(self._rows, _builder=builder))

    def raw_states(self, automaton: Dfa, known: Mapping[int, int]) -> list[int]:
        """Append states that read the language of an automaton as plain UTF-8 text.

        In accepting states, the rule (part of the pushdown automaton that is called) may return with label 0.

        Args:
            automaton: The language, over characters.
            known: Label in `automaton.accepting` -> existing pushdown state, which is used for all states with this
                label.

        Returns:
            For each state of the automaton, the number of its pushdown state.
        """
        numbers = [known[label] if label in known else self._builder.state() for label in automaton.accepting]
        loops = [0] * len(numbers)
        # A known state may allow less than the automaton does.
        if not known:
            for state, run in _runs_worth(automaton.tolerated_runs(UNESCAPED, code.TOLERATED_RUN)):
                loops[state] = self._builder.loop(base=code.TOLERATES_UNESCAPED, run=run)
        rows = self._builder.rows(self._rows.in_text(automaton, numbers))
        for number, label, row, loop in zip(numbers, automaton.accepting, rows, loops, strict=True):
            if label not in known:
                self._builder.fill(number, row=row, exit_label=0 if label else -1, loop=loop)
        return numbers

    def raw_row(self, ranges: Iterable[tuple[int, int, int]]) -> int:
        """Store the dense row (next state after each byte) of one state that reads plain UTF-8 text.

        Args:
            ranges: Triples (first code point, last code point, next state), ascending, bounds inclusive.

        Returns:
            The number of the row in the builder.
        """
        row = self._rows.row(ranges)
        self._builder.spend(int(np.count_nonzero(row >= 0)) + 1)
        return self._builder.row(row)

    @memoized
    def json_string(self, automaton: Dfa, closed: tuple[int, ...], guards: tuple[Guard, ...] = ()) -> int:
        """Append states that read the rest of a JSON string after its opening quote. The counter is not changed.

        Args:
            automaton: The language of the string's contents.
            closed: For each state of the automaton, the pushdown state after the closing quote. -1: no closing quote.
                Ignored for states that do not accept.
            guards: For each state of the automaton, the guard (condition on the counter) that must pass on entering the
                state. (): no guards.

        Returns:
            The number of the first state.
        """
        guards = guards or ((),) * automaton.many_states
        ops = [self._builder.op(guard=guard) if guard else 0 for guard in guards]
        closings = [closing if label else -1 for closing, label in zip(closed, automaton.accepting, strict=True)]
        states = self._string_states(automaton, closings, guards, ops)
        # The precomputed masks of a vocabulary are valid for canonical encodings only.
        if not self.any_escape:
            loops = self._tolerance(automaton, guards, counted=False)
            for state in automaton.free_states:
                if closings[state] != -1:
                    loops[state] = self._builder.loop()
            self._builder.fill_states(states, {code.STATE_LOOP: loops})
        return states

    @memoized
    def counted_json_string(self, automaton: Dfa, *by_label: tuple[tuple[int, Guard], ...]) -> int:
        """Append states that read a JSON string after its opening quote, and count its characters.

        The states are a rule that other states call. The counter must be 0 at the beginning. After the closing quote,
        the rule returns with a number that selects the caller's next state. The number depends on the kind and the
        length of the string. LimitExceededError is raised if a table of lengths would be too large.

        Args:
            automaton: The language of the string's contents. Its labels, from 1, are the kinds of strings.
            by_label: For each label of the automaton, pairs (number to return with, guard on the length in characters).
                At most one guard of a label passes for each length.

        Returns:
            The number of the first state.
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
                # The mask of a free string assumes one continuation after the quote, so the length must not decide it.
                if closings[state] != -1 and len(ending) == 1:
                    loops[state] = builder.loop(ending[0][0], -1 if ending[0][1] == UNBOUNDED else ending[0][1])
            builder.fill_states(states, {code.STATE_LOOP: loops})
        # Entering the first state after a character counts, entering it after the opening quote must not.
        return builder.state(row=builder.row_of(states), loop=loops[0])

    def _string_states(
        self, automaton: Dfa, closings: Sequence[int], guards: Sequence[Guard], ops: Sequence[int]
    ) -> int:
        """Append the states inside a string, one for each state of the automaton. Return the first."""
        builder = self._builder
        begin = builder.empty_states(automaton.many_states)
        self._rows.guard_of.update((begin + state, guard) for state, guard in enumerate(guards) if guard)
        states = range(begin, begin + automaton.many_states)
        rows = builder.rows(self._rows.in_string(automaton, states, closings, any_escape=self.any_escape))
        builder.fill_states(begin, {code.STATE_ROW: rows, code.STATE_INSTRUCTION: ops})
        return begin

    def _returns(self, lengths: Mapping[int, Guard]) -> int:
        """Append a state that returns with the label whose guard the counter passes."""
        builder = self._builder
        *others, (label, guard) = lengths.items()
        state = builder.state(op=builder.return_(label, guard=guard))
        for label, guard in others:
            builder.note_label(label)
            state = builder.state(op=builder.otherwise(state, guard=guard), exit_label=label)
        return state

    def guarded(self, body: int, guard: Guard) -> int:
        """Append a copy of the states that read any string, in which the counter must pass a guard.

        Args:
            body: State that `json_string` returned for the automaton of any text, without guards and with canonical
                encodings only.
            guard: Condition on the counter.

        Returns:
            The number of the first state.
        """
        builder = self._builder
        row = builder.row_targets(builder.row_of(body))
        state = builder.state()
        self._rows.guard_of[state] = guard
        # The other bytes lead to states that call a rule for the rest of a character, and to the end of the string.
        for target in sorted({*row.tolist()} - {DEAD}):
            rule = builder.called_by(target)
            if target == body:
                row[row == target] = state
            elif rule is not None:
                row[row == target] = builder.state(op=builder.call(rule, [state], guard=guard, enter=code.INHERIT))
        builder.fill(state, row=builder.row(row), op=builder.op(guard=guard), loop=builder.loop())
        return state

    def rows_beside(self, automaton: Dfa, body: int, text: bytes) -> list[int]:
        """Return dense rows (next state after each byte) that read all strings other than a constant string.

        Each byte of the constant has a row for the other bytes at its position. At the beginning of a character, this
        is the row of the state `body`. Inside a character, the row allows only the remaining bytes of other characters.

        Args:
            automaton: Automaton with a single state, to which its characters lead back.
            body: State that `json_string` returned for `automaton`.
            text: The constant in the canonical encoding, without the opening quote.

        Returns:
            Numbers of the rows, one per byte of `text`. -1: no other byte is allowed.
        """
        outside = self._builder.row_of(body)
        rows: list[int] = []
        for spelling in split_characters(text):
            rows += [outside, *self._rows.inside(automaton, body, spelling)]
        return rows

    def _tolerance(self, automaton: Dfa, guards: Sequence[Guard], *, counted: bool) -> list[int]:
        """Return per state the loop that describes its tolerated characters, or 0."""
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
    """Return the states that tolerate runs as long as most tokens, with their runs."""
    states = np.flatnonzero(runs >= _RUN_WORTH)
    return list(zip(states.tolist(), runs[states].tolist(), strict=True))


def _lowest_counters(automaton: Dfa, guards: Sequence[Guard]) -> list[int]:
    """Return per state the lowest counter that passes the guards of all states reachable from it, or UNBOUNDED."""
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


# All characters except RARE ones.
COMMON = charset.subtract(ALL, charset.of(code.RARE))
# Characters that need no escape in a JSON string, except the two line separators that `.` does not match, and RARE
# ones.
UNESCAPED = charset.subtract(COMMON, charset.union(ESCAPED, charset.of("\u2028\u2029")))


def _cap(intervals: Iterable[Interval]) -> int:
    """Return how far characters must be counted to decide whether a length is in each of these intervals."""
    bounds = list(intervals)
    is_open = any(high == UNBOUNDED for _, high in bounds)
    return max(low if high == UNBOUNDED else high + is_open for low, high in bounds)


def _arrival_guards(automaton: Dfa, endings: Sequence[Sequence[Interval]]) -> list[Guard]:
    """Return per state the guard on the counter (before counting) for entering the state after a character.

    A string with label i may end with a length in one of the intervals `endings[i - 1]`. The function raises
    LimitExceededError if the table of lengths would be too large.
    """
    found: list[list[Interval]] = [[] for _ in range(automaton.many_states)]
    for label, ending in enumerate(endings, 1):
        for lengths in ending:
            for state, arrivals in enumerate(_arrivals(automaton, label, lengths)):
                found[state] += arrivals
    return [union_guards([tuple(arrivals)]) if arrivals else NEVER for arrivals in found]


def _arrivals(automaton: Dfa, label: int, lengths: Interval) -> Sequence[Sequence[Interval]]:
    """Return what `_arrival_guards` returns, for one label and one interval of lengths.

    The intervals are () for states that must not be entered. With c characters read after counting, a state may be
    entered if and only if it accepts a continuation of r characters with minimum <= c + r <= maximum.
    """
    nearest, furthest = _ends(automaton, label)
    # A bound that every string with the label satisfies needs no guard.
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
    """Return whether an automaton accepts a string whose length is in an interval.

    `LimitExceededError` is raised if the table of lengths would be too large.

    Args:
        automaton: The language, over characters.
        lengths: Minimum and maximum number of characters, inclusive.
        label: Label with which the string must be accepted. None: any label.
    """
    minimum, maximum = lengths
    fewest, most = (ends[0] for ends in _ends(automaton, label))
    if minimum <= fewest <= maximum or minimum <= most <= maximum:
        return True
    return fewest < minimum <= maximum < most and (
        _is_dense(automaton, label, maximum - minimum) or bool(_fitting(automaton, label, lengths)[0, 0])
    )


@functools.lru_cache(maxsize=64)
def _ends(automaton: Dfa, label: int | None) -> tuple[list[int], list[int]]:
    """Return per state the minimum and maximum number of characters to an accepting state (with `label`).

    Both are -1 for a state that leads to no such end. The maximum is UNBOUNDED if a cycle is on the way.
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
    # A state is visited after the last of its successors. States on a cycle, or before one, are never visited.
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
    """Return whether the lengths to an accepting state have no gap wider than `room`, in each state.

    The lengths of a state are those of its successors plus 1, and 0 if it accepts. The check is conservative: it
    compares only the minimum and maximum of the successors, and returns False if their intervals leave a wider gap.
    """
    # The last entry stands for the dead state -1. Successors that lead to no end have -1 and leave no gap.
    nearest, furthest = (np.array([*ends, -1], np.int64) for ends in _ends(automaton, label))
    moves = automaton.distinct_moves
    order = np.argsort(nearest[moves], axis=1)
    begins, ends = (np.take_along_axis(bound[moves], order, axis=1) for bound in (nearest, furthest))
    reached = np.maximum.accumulate(np.column_stack([nearest[:-1], ends + 1]), axis=1)
    return not bool((begins - reached[:, :-1] > room).any())


def _fitting(automaton: Dfa, label: int | None, lengths: Interval) -> NDArray[np.bool_]:
    """Return whether a string that has led to a state can be completed to a length in `lengths` (with `label`).

    Returns:
        bool [lengths[1] + 1, states], by the number of characters read so far.

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
