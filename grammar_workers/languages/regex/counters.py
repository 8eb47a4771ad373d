r"""Regular expressions with large counts, without writing the counts out: `.{2,100000}`, `([a-z]{2},){0,50000}`.

The counter of the pushdown automaton counts the repetitions. That is exact where at most one count is running at any
time, and all ways to read the text so far agree about it; other patterns are left to be written out.
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

_LARGE = 1000
"""Parts that are longer than this when written out are counted."""


class NotCountableError(Exception):
    """The counter alone cannot tell the counts of this pattern."""


@dataclasses.dataclass(frozen=True)
class _Counter:
    """The bits of one more repetition and of what follows the last one."""

    low: int
    high: int | None
    repetition: int
    following: int


class _State(NamedTuple):
    """The positions outside of any running count, and those inside the running one (`counter`, -1: none)."""

    plain: int
    counter: int
    counted: int


class _Choice(NamedTuple):
    """A state to enter where the count so far is at most `highest` (None: whatever it is)."""

    state: int
    highest: int | None
    new_count: int | None
    """The count from then on, None: what it was; _ONE_MORE: one more."""


_ONE_MORE = -1
_Arrival = tuple[_Choice, ...]
"""What a character leads to: the first choice that the count allows. () is dead."""


def counted_text(pattern: str, allowed: Charset, builder: PushdownBuilder, limits: Limits) -> int | None:
    """Append states that read what `pattern` matches as a whole in `allowed` characters; returns the first.

    None when nothing matches. Raises NotCountableError, and LimitExceededError when even so it is too large.
    """
    positions = _CountedPositions(limits, allowed)
    source = positions.automaton(_without_first_anchors(read_regex(pattern, limits)), False, anywhere=False)
    if any(gate.condition is not Condition.COUNTED for gate in source.gates.values()) or not positions.counters:
        raise NotCountableError
    construction = _Construction(source, positions, limits)
    return None if construction.is_empty else construction.lower(builder)


class _CountedPositions(Positions):
    """The first repetition of a counted part is written out; behind it, and behind every further one, is a gate."""

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
            # What may be empty repeats without being seen.
            raise NotCountableError
        self.counters.append(_Counter(max(node.low, 1), node.high, repetition, following))
        return first if node.low else first | following


class _Construction:
    """Subset construction with one running count."""

    def __init__(self, source: GlushkovNfa, positions: _CountedPositions, limits: Limits) -> None:
        self._source = source
        self._counters = positions.counters
        self._budget = budget_of(limits)
        starts, class_at, members = charset.partition(list(positions.alphabet))
        self._spans = charset.spans_of(starts, class_at)
        self._masks = [
            sum(1 << bit for bit, number in enumerate(source.sets) if number >= 0 and held >> number & 1)
            for held in members
        ]
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
        """One more repetition is complete: too few so far, enough but not yet too many, or the last one."""
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
        """The bits after one character, and the counters of the repetitions that it completes."""
        following = 0
        for bit in bits_of(bits):
            following |= self._source.follow[bit]
        self._budget.spend(bits.bit_count() + 1)
        gates = following & self._source.gate_bits
        return following ^ gates, [self._source.gates[bit].index for bit in bits_of(gates)]

    def _accepts(self, number: int) -> bool:
        return bool((self._states[number].plain | self._states[number].counted) & ENDS)

    def _remove_dead(self) -> None:
        """Leave no way to a state from which the text cannot end."""
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
        """Append the states of the pushdown automaton; returns the first."""
        numbers = {0: builder.state()}
        # (pushdown automaton state, state, op on entering it)
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
        """The loop number of a state that counts single characters, all that need no escape in JSON among them."""
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
    """`^` at the beginning says nothing about a match of the whole text, and `$` at the end is no condition anyway."""
    parts = list(node.parts) if isinstance(node, Sequence) else [node]
    while parts and isinstance(parts[0], Anchor) and not parts[0].at_end:
        del parts[0]
    return Sequence(tuple(parts))
