"""Compiler of regular expressions with large repetition counts: `.{2,100000}`, `([a-z]{2},){0,50000}`.

The counter of the pushdown automaton counts the repetitions, so they need no states. This is exact under two
conditions. First, at most one repetition is counted at any time. Second, all paths of the automaton that read the same
text agree on the count. Other patterns raise NotCountableError. Their counts must be written out as states.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset, bits_of
from grammar_workers.dfa.reached import reached, sources_of
from grammar_workers.languages.regex.compile import Positions
from grammar_workers.languages.regex.nfa import ENDS, Condition, GlushkovNfa
from grammar_workers.languages.regex.parse import Anchor, Node, Repeat, Sequence, read_regex
from grammar_workers.languages.regex.written_out import length
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import TOLERATES_UNESCAPED
from grammar_workers.pushdown.strings import UNESCAPED, StringLowering

# Parts with more characters than this when written out are counted.
_LARGE = 1000


class NotCountableError(Exception):
    """One counter cannot represent the counts of a pattern exactly, or the pattern has no large counts."""


@dataclasses.dataclass(frozen=True)
class _Counter:
    """The bounds of a counted repetition, the bits of one more repetition, and those after the last one."""

    low: int
    high: int | None
    repetition: int
    following: int


class _State(NamedTuple):
    """The positions outside any active count, and those inside the active one (`counter` -1: no count is active)."""

    plain: int
    counter: int
    counted: int


class _Choice(NamedTuple):
    """A state to enter if the count so far is at most `highest` (None: any count).

    Attributes:
        new_count: The count in the new state. None: unchanged. _ONE_MORE: incremented.
    """

    state: int
    highest: int | None
    new_count: int | None


_ONE_MORE = -1
# The result of a character: the first choice that the count allows is taken. () is the dead state.
_Arrival = tuple[_Choice, ...]


def counted_text(pattern: str, allowed: Charset, builder: PushdownBuilder, limits: Limits) -> int | None:
    """Append pushdown states that match a whole pattern. The counter of the automaton holds large repetition counts.

    A pattern that is too large even with counts in the counter raises LimitExceededError.

    Args:
        pattern: A regular expression that `read_regex` accepts.
        allowed: The characters that texts may contain.
        builder: The pushdown automaton to extend.
        limits: Bounds on states and on steps of work.

    Returns:
        Number of the first state in `builder`. None if no text matches.

    Raises:
        NotCountableError: The counts must be written out as states, or the pattern has no large counts.
    """
    positions = _CountedPositions(limits, allowed)
    source = positions.automaton(_without_first_anchors(read_regex(pattern, limits)), False, anywhere=False)
    if any(gate.condition is not Condition.COUNTED for gate in source.gates.values()) or not positions.counters:
        raise NotCountableError
    construction = _Construction(source, positions, limits)
    return None if construction.is_empty else construction.lower(builder)


class _CountedPositions(Positions):
    """Positions in which two copies of a counted part are written out, each followed by a counting gate."""

    def __init__(self, limits: Limits, allowed: Charset) -> None:
        super().__init__(limits, allowed)
        self.counters: list[_Counter] = []
        self._counting = False

    def repeat(self, out: GlushkovNfa, node: Repeat, following: int, either: bool) -> int:
        most = node.low if node.high is None else node.high
        if self._counting or most < 2 or most * length(node.body) <= _LARGE:
            return super().repeat(out, node, following, either)
        self._counting = True
        gate = out.gate(Condition.COUNTED, 0, index=len(self.counters))
        repetition = self.build(out, node.body, gate, either)
        first = self.build(out, node.body, gate, either)
        self._counting = False
        if first & gate:
            # A body that matches the empty text could repeat without being counted.
            raise NotCountableError
        self.counters.append(_Counter(max(node.low, 1), node.high, repetition, following))
        return first if node.low else first | following


class _Construction:
    """Subset construction with one active count."""

    def __init__(self, source: GlushkovNfa, positions: _CountedPositions, limits: Limits) -> None:
        self._source = source
        self._counters = positions.counters
        self._budget = budget_of(limits)
        starts, class_at, letters = charset.letters_of(positions.alphabet)
        self._spans = charset.spans_of(starts, class_at)
        self._masks = [0] * len(self._spans)
        classes_of = list(letters.values())
        for bit, number in enumerate(source.sets):
            for each in classes_of[number] if number >= 0 else ():
                self._masks[each] |= 1 << bit
        self._free = [bool(charset.intersect(tuple(spans), UNESCAPED)) for spans in self._spans]
        self._states: list[_State] = []
        self._arrivals: list[list[_Arrival]] = []
        self._number(_State(source.start, -1, 0))
        for state in self._states:
            self._arrivals.append([self._after(state, mask) for mask in self._masks])
        self._remove_dead()

    @memoized
    def _number(self, state: _State) -> int:
        self._budget.check_states(len(self._states))
        self._states.append(state)
        return len(self._states) - 1

    def _after(self, state: _State, mask: int) -> _Arrival:
        plain, started = self._follow(state.plain & mask)
        counted, ticked = self._follow(state.counted & mask)
        if len(started) + bool(counted or ticked) > 1 or (ticked and counted):
            raise NotCountableError
        if started:
            counter = self._counters[started[0]]
            plain |= counter.following if counter.low <= 1 else 0
            return (_Choice(self._number(_State(plain, started[0], counter.repetition)), None, 1),)
        if ticked:
            return self._ticked(plain, ticked[0])
        if counted:
            return (_Choice(self._number(_State(plain, state.counter, counted)), None, None),)
        return (_Choice(self._number(_State(plain, -1, 0)), None, 0),) if plain else ()

    def _ticked(self, plain: int, number: int) -> _Arrival:
        """Return the arrival after one more repetition: too few so far, enough and more allowed, or the last one."""
        counter = self._counters[number]
        again = _State(plain, number, counter.repetition)
        either = again._replace(plain=plain | counter.following)
        choices = []
        if counter.low > 2:
            choices.append(_Choice(self._number(again), counter.low - 2, _ONE_MORE))
        if counter.high is None:
            return (*choices, _Choice(self._number(either), None, _ONE_MORE))
        if counter.low < counter.high > 2:
            choices.append(_Choice(self._number(either), counter.high - 2, _ONE_MORE))
        return (*choices, _Choice(self._number(_State(either.plain, -1, 0)), None, 0))

    def _follow(self, bits: int) -> tuple[int, list[int]]:
        """Return the bits after one character, and the counters of the repetitions that the character completes."""
        following = 0
        for bit in bits_of(bits):
            following |= self._source.follow[bit]
        self._budget.spend(bits.bit_count() + 1)
        gates = following & self._source.gate_bits
        return following ^ gates, [self._source.gates[bit].index for bit in bits_of(gates)]

    def _accepts(self, number: int) -> bool:
        return bool((self._states[number].plain | self._states[number].counted) & ENDS)

    def _remove_dead(self) -> None:
        """Remove moves to states from which no accepting state is reachable."""
        self._budget.spend(len(self._states))
        sources = sources_of([[choice.state for arrival in row for choice in arrival] for row in self._arrivals])
        alive = reached(filter(self._accepts, range(len(self._states))), sources.__getitem__)
        for row in self._arrivals:
            for character, arrival in enumerate(row):
                living = sum(choice.state in alive for choice in arrival)
                if 0 < living < len(arrival):
                    raise NotCountableError
                if not living:
                    row[character] = ()
        self.is_empty = 0 not in alive

    # -- states of the pushdown automaton ----------------------------------------------------------------------------

    def lower(self, builder: PushdownBuilder) -> int:
        """Append the states to the pushdown automaton and return the first."""
        numbers = {0: builder.state()}
        # (pushdown state, state, instruction that runs on entering it)
        pending = [(numbers[0], 0, 0)]
        text = StringLowering(builder)

        @functools.cache
        def enter(arrival: _Arrival) -> int:
            """The pushdown automaton state that a character leads to."""
            number = builder.state()
            choice, rest = arrival[0], arrival[1:]
            cap = self._cap(choice.state) if choice.new_count == _ONE_MORE else None
            assigned = None if choice.new_count == _ONE_MORE else choice.new_count
            if rest:
                assert choice.highest is not None
                op = builder.otherwise(enter(rest), guard=[(0, choice.highest)], increment_to=cap, assign=assigned)
            else:
                op = builder.op(increment_to=cap, assign=assigned)
            pending.append((number, choice.state, op))
            return number

        for number, state, op in pending:
            arrivals = zip(self._spans, self._arrivals[state], strict=True)
            ranges = sorted((*span, enter(arrival)) for spans, arrival in arrivals if arrival for span in spans)
            builder.fill(
                number,
                row=text.raw_row(ranges),
                op=op,
                exit_label=0 if self._accepts(state) else -1,
                loop=self._tolerance(state, builder),
            )
        return numbers[0]

    def _cap(self, state: int) -> int:
        counter = self._counters[self._states[state].counter]
        return counter.low if counter.high is None else counter.high

    def _tolerance(self, number: int, builder: PushdownBuilder) -> int:
        """Return the loop of a state that counts characters, all that JSON does not escape among them; else 0."""
        state = self._states[number]
        if state.counter < 0 or state.counted.bit_count() != 1:
            return 0
        counter = self._counters[state.counter]
        gate = self._source.follow[state.counted.bit_length() - 1]
        if not gate & self._source.gate_bits:
            return 0
        characters = [m for m, free in zip(self._masks, self._free, strict=True) if free]
        if not all(mask & state.counted for mask in characters):
            return 0
        return builder.loop(0, -1 if counter.high is None else counter.high, TOLERATES_UNESCAPED)


def _without_first_anchors(node: Node) -> Node:
    """Return the pattern without `^` at its beginning, which is always true in a match of the whole text."""
    parts = list(node.parts) if isinstance(node, Sequence) else [node]
    while parts and isinstance(parts[0], Anchor) and not parts[0].at_end:
        del parts[0]
    return Sequence(tuple(parts))
