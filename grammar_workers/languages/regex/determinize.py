"""Subset construction: converts Glushkov NFAs with look-arounds to a DFA.

A state of the DFA is a pair:

1. For each look-behind, the state of its automaton after the text so far.
2. A set of *threads*, which are pairs (obligations, bits). The bits are positions of the NFA that may read the next
   character. An obligation is a state of the automaton of a look-ahead; this automaton must accept the rest of the text
   (alternating automata: Chandra, Kozen and Stockmeyer, 1981).

Without look-arounds this is the ordinary subset construction, which `determinize_kernel` runs in compiled code.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset, bits_of
from grammar_workers.dfa.dfa import Dfa, from_table
from grammar_workers.dfa.minimize import minimal
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.languages.regex.determinize_kernel import MOST_BITS, TOO_MANY_STATES, reachable_subsets
from grammar_workers.languages.regex.nfa import ENDS, Condition, GlushkovNfa
from grammar_workers.memo import memoized
from grammar_workers.options import Limits

# (number of the automaton of a look-ahead, its state).
_Obligation = tuple[int, int]
_Obligations = frozenset[_Obligation]
_Threads = frozenset[tuple[_Obligations, int]]
# The state of the automaton of each look-behind.
_Behind = tuple[int, ...]

_NOTHING: _Obligations = frozenset()
# The obligation that no character follows.
_AT_END: _Obligation = (-1, 0)
_ANCHORS = (Condition.AT_START, Condition.AT_END)


class SubsetConstruction:
    """Subset construction: converts the Glushkov NFAs of one pattern and its look-arounds to minimal DFAs.

    All automata read classes of characters. Two characters are in one class if they are in the same sets.

    Args:
        sets: The distinct character sets of the pattern and its look-arounds. The NFAs refer to a set by its index.
        aheads: NFAs of the look-aheads, inner ones first. They read the rest of the text.
        behinds: NFAs of the look-behinds, inner ones first. They read the text from its beginning.
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.
    """

    def __init__(
        self,
        sets: Sequence[Charset],
        aheads: Sequence[GlushkovNfa],
        behinds: Sequence[GlushkovNfa],
        limits: Limits,
    ) -> None:
        self._starts, self._class_at, classes = charset.letters_of(sets)
        self._classes_of = list(classes.values())
        self._many_classes = max(self._class_at) + 1
        self._most_states = limits.max_regex_states
        self._budget = budget_of(limits)
        self._sources = aheads
        # Automata over classes: the code point of a character stands for its class.
        self._aheads: list[Dfa] = []
        self._behinds: list[Dfa] = []
        for source in behinds:
            self._behinds.append(_over_classes(*self._determinize(source, (0,) * len(self._behinds), at_start=True)))

    def automaton(self, source: GlushkovNfa) -> Dfa:
        """Return the minimal DFA of a whole pattern. A pattern that is too large raises LimitExceededError.

        Args:
            source: Glushkov NFA of the pattern. Its gates (conditions) refer to look-arounds by index in `aheads` or
                `behinds`.
        """
        table, accepting = self._determinize(source, (0,) * len(self._behinds), at_start=True)
        return from_table(self._starts, self._class_at, table, accepting)

    def _determinize(
        self, source: GlushkovNfa, behind: _Behind, *, at_start: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the minimal automaton: moves int32 [states, classes] (-1: none), accepting int32 [states]."""
        self._budget.spend(2 * len(source.sets) + (len(source.sets) * len(source.sets) >> 10))
        anchored = all(gate.condition in _ANCHORS for gate in source.gates.values())
        if anchored and not behind and len(source.follow) <= MOST_BITS:
            return minimal(*self._plain_subsets(source, at_start=at_start))
        return minimal(*self._conditional_subsets(source, behind, at_start=at_start))

    def _plain_subsets(self, source: GlushkovNfa, *, at_start: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the subsets of a part without look-arounds. Anchors do not depend on the characters of the text."""

        def passed(bits: int, *, at_start: bool) -> int:
            """Return the bits that remain after anchors; an end anchor leaves only the bit that the text may end."""
            threads = self._settle(source, {_NOTHING: bits}, (), at_start=at_start)
            return functools.reduce(int.__or__, [left & ENDS if owed else left for owed, left in threads], 0)

        follow = source.follow
        if source.gates:
            after = {bits: passed(bits, at_start=False) for bits in set(follow) if bits & source.gate_bits}
            follow = [after.get(bits, bits) for bits in follow]
        many, moves, accepting, steps = reachable_subsets(
            passed(source.start, at_start=at_start),
            follow,
            source.sets,
            self._classes_of,
            source.universal,
            source.weaker(),
            many_classes=self._many_classes,
            most_states=self._most_states,
            most_steps=self._budget.left,
        )
        self._budget.spend(steps)
        if many == TOO_MANY_STATES:
            self._budget.check_states(self._most_states)
        return moves[:many], accepting[:many]

    def _conditional_subsets(
        self, source: GlushkovNfa, behind: _Behind, *, at_start: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the subsets of a part with look-arounds."""
        behinds = self._behinds[: len(behind)]
        first = (behind, self._settle(source, {_NOTHING: source.start}, behind, at_start=at_start))
        numbers = {_key_of(*first): 0}
        states = [first]
        moves = []
        accepting = []
        # Successors before gates are passed -> the state. Settling takes most of the time, so its results are cached.
        unsettled: dict[Hashable, int] = {}

        def settled(identity: Hashable, after: _Behind, pending: dict[_Obligations, int]) -> int:
            threads = self._settle(source, pending, after, at_start=False)
            key = _key_of(after, threads)
            number = numbers.get(key)
            if number is None:
                self._budget.check_states(len(numbers))
                number = numbers[key] = len(states)
                states.append((after, threads))
            unsettled[identity] = number
            return number

        for behind, threads in states:
            self._budget.spend(self._many_classes * (1 + len(behind) // 4))
            accepting.append(int(any(bits & ENDS and self._all_accept(owed) for owed, bits in threads)))
            reached: list[dict[_Obligations, int]] = [{} for _ in range(self._many_classes)]
            for owed, bits in threads:
                if _AT_END not in owed:
                    self._read(source, owed, bits & ~ENDS, reached)
            row = []
            for character, pending in enumerate(reached):
                self._budget.spend(2 * len(pending))
                if not pending:
                    row.append(DEAD)
                    continue
                after = tuple(
                    [
                        DEAD if state == DEAD else automaton.moves[state][character]
                        for state, automaton in zip(behind, behinds, strict=True)
                    ]
                )
                identity = (after, *((owed, _hashable(bits)) for owed, bits in pending.items()))
                number = unsettled.get(identity)
                row.append(settled(identity, after, pending) if number is None else number)
            moves.append(row)
        return np.array(moves, np.int32), np.array(accepting, np.int32)

    def _following(self, source: GlushkovNfa, bits: int) -> list[int]:
        """Return the bits after one character, for each class of characters."""
        by_set: dict[int, int] = {}
        for bit in bits_of(bits):
            number = source.sets[bit]
            by_set[number] = by_set.get(number, 0) | source.follow[bit]
        # The integers of long patterns are long, which makes operations on them slower.
        self._budget.spend(3 * bits.bit_count() + 4 + (len(source.follow) >> 9) + (self._many_classes >> 2))
        following = [0] * self._many_classes
        for number, after in by_set.items():
            for character in self._classes_of[number]:
                following[character] |= after
        return following

    def _read(self, source: GlushkovNfa, owed: _Obligations, bits: int, reached: list[dict[_Obligations, int]]) -> None:
        """Add the successors of one thread to `reached`, for each class of characters."""
        for character, after in enumerate(self._following(source, bits)):
            if not after:
                continue
            self._budget.spend(1 + len(owed) // 2)
            still = self._advanced(owed, character) if owed else owed
            if still is not None:
                pending = reached[character]
                pending[still] = pending.get(still, 0) | after

    # -- look-around -------------------------------------------------------------------------------------------------

    def _settle(
        self, source: GlushkovNfa, pending: dict[_Obligations, int], behind: _Behind, *, at_start: bool
    ) -> _Threads:
        """Return the threads after each gate has been passed or has been found closed."""
        if len(pending) == 1 and _NOTHING in pending:
            bits = pending[_NOTHING]
            if bits & source.universal:
                return frozenset([(_NOTHING, source.universal | ENDS)])
            if not bits & source.gate_bits:
                return frozenset([(_NOTHING, bits)])
        settled: dict[_Obligations, int] = {}
        passed = set()
        todo = list(pending.items())
        while todo:
            owed, bits = todo.pop()
            self._budget.spend(12 + len(owed))
            if bits & source.universal:
                bits = source.universal | ENDS
            gates = bits & source.gate_bits
            settled[owed] = settled.get(owed, 0) | (bits ^ gates)
            for bit in bits_of(gates):
                if (owed, bit) in passed:
                    continue
                passed.add((owed, bit))
                self._budget.spend(8 + len(owed) + len(behind) // 4)
                added = self._pass(source, bit, behind, at_start=at_start)
                if added is not None:
                    todo.append((owed | added, source.gates[bit].target))
        # The bits of a thread are redundant if a thread with fewer obligations has them.
        for owed in settled:
            self._budget.spend(len(settled) * (2 + len(owed)) // 16)
            for less, bits in settled.items():
                if less < owed:
                    settled[owed] &= 0 if bits & source.universal else ~bits
        return frozenset((owed, bits) for owed, bits in settled.items() if bits)

    def _pass(self, source: GlushkovNfa, bit: int, behind: _Behind, *, at_start: bool) -> _Obligations | None:
        """Return the obligations that result from passing a gate; None if the gate is closed."""
        gate = source.gates[bit]
        if gate.condition is Condition.AT_START:
            return _NOTHING if at_start else None
        if gate.condition is Condition.AT_END:
            return frozenset([_AT_END])
        if gate.condition is Condition.BEHIND:
            state = behind[gate.index]
            matches = state != DEAD and bool(self._behinds[gate.index].accepting[state])
            return None if matches == gate.negative else _NOTHING
        number = self._ahead(gate.index, gate.negative, behind, at_start)
        automaton = self._aheads[number]
        if automaton.is_empty:
            return None
        return _NOTHING if 0 in automaton.free_states else frozenset([(number, 0)])

    @memoized
    def _ahead(self, index: int, negative: bool, behind: _Behind, at_start: bool) -> int:
        """Return the number of the automaton of a look-ahead that is entered with this past."""
        automaton = _over_classes(*self._determinize(self._sources[index], behind, at_start=at_start))
        self._aheads.append(_complement(automaton) if negative else automaton)
        return len(self._aheads) - 1

    def _advanced(self, owed: _Obligations, character: int) -> _Obligations | None:
        """Return the obligations after one more character; None if one of them can no longer be satisfied."""
        after = set()
        for number, state in owed:
            automaton = self._aheads[number]
            target = automaton.moves[state][character]
            if target == DEAD:
                return None
            if target not in automaton.free_states:
                after.add((number, target))
        return frozenset(after)

    def _all_accept(self, owed: _Obligations) -> bool:
        return all(o == _AT_END or self._aheads[o[0]].accepting[o[1]] for o in owed)


def _key_of(behind: _Behind, threads: _Threads) -> Hashable:
    return behind, frozenset((owed, _hashable(bits)) for owed, bits in threads)


def _hashable(bits: int) -> bytes:
    """Return the bits as a key. The hash of an int is its remainder by 2**61 - 1: single bits have 61 hashes."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _over_classes(moves: NDArray[np.int32], accepting: NDArray[np.int32]) -> Dfa:
    return Dfa(tuple(range(moves.shape[1])), moves, tuple(accepting.tolist()))


def _complement(automaton: Dfa) -> Dfa:
    moves = np.pad(automaton.table, ((0, 1), (0, 0)), constant_values=DEAD)
    moves[moves == DEAD] = automaton.many_states
    labels = np.array([not label for label in (*automaton.accepting, 0)], np.int32)
    return _over_classes(*minimal(moves, labels))
