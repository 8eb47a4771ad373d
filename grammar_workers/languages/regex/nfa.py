"""Nondeterministic automata whose states are the positions of the characters in a pattern (Glushkov, 1961).

A set of states is an integer. Bit 0 means that the text may end. Every other bit is a position or a *gate*. A position
reads its character. A gate is a condition: if it holds, further bits are reached without reading. For `a(b|$)*`:

    bit 1 'a'  then {2, 3, 0}      bit 2 'b'  then {2, 3, 0}      bit 3 gate: nothing follows, then {2, 3, 0}
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

from grammar_workers.budget import budget_of
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.options import Limits

# The bit that means that the text may end.
ENDS = 1


class Condition(enum.Enum):
    """Kind of a gate (a condition between two characters of a pattern).

    Attributes:
        AT_START: The text begins here.
        AT_END: The text ends here.
        AHEAD: A look-ahead matches the rest of the text.
        BEHIND: A look-behind matches the text so far.
        COUNTED: Always true. It marks the end of one repetition of a counted part.
    """

    AT_START = enum.auto()
    AT_END = enum.auto()
    AHEAD = enum.auto()
    BEHIND = enum.auto()
    COUNTED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Gate:
    """Condition between two characters of a pattern. If it holds, further positions are reached without reading.

    Attributes:
        condition: The kind of the condition.
        index: Number of the look-ahead, look-behind or counter; 0 for other kinds.
        negative: True if the look-around must not match.
        target: The positions and gates that are reached if the condition holds, as bits of an integer.
    """

    condition: Condition
    index: int
    negative: bool
    target: int


# The character sets of one pattern and its look-arounds -> their numbers.
Alphabet: TypeAlias = dict[Charset, int]


class GlushkovNfa:
    """Nondeterministic automaton with one state, a *position*, for each character of a pattern.

    The only silent moves are *gates* (conditions). A set of positions and gates is an integer: bit i is set if number i
    is in the set. Bit 0 (`ENDS`) means that the text may end. The NFA is built from the end of the pattern to its
    beginning, because each part needs the bits that may follow it. For `ab?`:

        bit 1: 'b', follow {0}      bit 2: 'a', follow {0, 1}      start {2}

    Args:
        alphabet: Character set -> its number, for a pattern and its look-arounds. New sets are added to it.
        limits: Bounds on positions and steps. The methods raise LimitExceededError for too many positions.

    Attributes:
        start: Set of the bits before the first character. The caller sets it.
        follow: For each number of a bit, the set of the bits after its character; 0 for gates.
        sets: For each number of a bit, the number of its character set; -1 for gates and bit 0.
        gates: Number of a bit -> its gate.
        gate_bits: Set of the bits of all gates.
        universal: Set with the one position after which every text is accepted; 0 if there is none.
    """

    def __init__(self, alphabet: Alphabet, limits: Limits) -> None:
        self._alphabet = alphabet
        self._budget = budget_of(limits)
        self.start = 0
        self.follow = [0]
        self.sets = [-1]
        self.gates: dict[int, Gate] = {}
        self.gate_bits = 0
        self.universal = 0
        self._direct: dict[int, list[int]] = {}

    def position(self, characters: Charset, following: int) -> int:
        """Append a position that reads one character.

        Args:
            characters: The characters that it may read.
            following: Set of the bits that may follow the character.

        Returns:
            Set with the bit of the position. If `characters` is empty, nothing is appended and the set is 0.
        """
        if not characters:
            return 0
        return 1 << self._append(self._alphabet.setdefault(characters, len(self._alphabet)), following)

    def gate(self, condition: Condition, following: int, *, index: int = 0, negative: bool = False) -> int:
        """Append a gate: a condition after which further bits are reached without reading.

        Args:
            condition: Kind of the condition.
            following: Set of the bits that are reached if the condition holds.
            index: Number of the look-ahead, look-behind or counter; 0 for other conditions.
            negative: True if the look-around must not match.

        Returns:
            Set with the bit of the gate.
        """
        bit = self._append(-1, 0)
        self.gates[bit] = Gate(condition, index, negative, following)
        self.gate_bits |= 1 << bit
        return 1 << bit

    def any_text(self, following: int) -> int:
        """Append a position that reads any character, any number of times.

        Args:
            following: Set of the bits that may follow these characters.

        Returns:
            Set of the bits before the first of these characters: the new position, and `following`.
        """
        bit = self.position(ALL, 0)
        self.follow[-1] = bit | following
        return bit | following

    def rest(self) -> int:
        """Append a position that reads any rest of the text, and set `universal`. Call this method at most once.

        Returns:
            Set of the bits before the rest: the new position, and bit 0.
        """
        bits = self.any_text(ENDS)
        self.universal = bits & ~ENDS
        return bits

    def loop(self) -> int:
        """Begin a part that may be repeated. `close_loop` must be called when the part has been built.

        Returns:
            Set with a placeholder bit, to be used as the bits that follow the part. `close_loop` replaces it.
        """
        return 1 << self._append(-1, 0)

    def close_loop(self, loop: int, first: int, following: int) -> int:
        """Make the part that was built since `loop` repeatable, any number of times or never.

        Args:
            loop: The placeholder that `loop` returned.
            first: Set of the bits with which the part begins.
            following: Set of the bits after the last repetition.

        Returns:
            Set of the bits before the repetition: `first` without the placeholder, and `following`.
        """
        repeated = (first & ~loop) | following
        for bit in range(loop.bit_length(), len(self.follow)):
            if self.follow[bit] & loop:
                self.follow[bit] = (self.follow[bit] & ~loop) | repeated
            elif bit in self.gates and self.gates[bit].target & loop:
                gate = self.gates[bit]
                self.gates[bit] = dataclasses.replace(gate, target=(gate.target & ~loop) | repeated)
        return repeated

    def note_copies(self, begin: int, many: int) -> None:
        """Record that the last appended positions (one bit each) are copies of one repeated part.

        Example: the five `a` of `a{0,5}`. `weaker` reads the record, to find positions that accept only texts that
        another position accepts as well. The repetition may end after each copy. The copies are appended from the last
        one in the text to the first one, and more copies can follow an earlier copy. So a position of an earlier copy
        accepts every text that the same position of a later copy accepts.

        Args:
            begin: The number of the first bit of the copies. They extend to the last bit.
            many: The number of copies. All have equally many bits. 0: nothing is recorded.
        """
        size = (len(self.follow) - begin) // max(many, 1)
        for bit in range(begin + size, len(self.follow)):
            self._direct.setdefault(bit, []).append(bit - size)

    def weaker(self) -> list[int]:
        """Return the redundant bits for each bit.

        Bit c is redundant beside bit b if b accepts every text that c accepts. Then a set with bit b does not need bit
        c. This keeps sets small: for `([a-z]{1,8} ?){1,40}`, only the paths with the fewest repetitions remain.

        Returns:
            For each number of a bit, the set of the bits that are redundant beside it, as an integer. [] if there are
            none.
        """
        found = [0] * len(self.follow) if self._direct else []
        # A bit is appended after the bits that are weaker, so their entries are complete.
        for bit, others in sorted(self._direct.items()):
            for other in others:
                found[bit] |= found[other] | 1 << other
        return found

    def _append(self, number: int, following: int) -> int:
        self._budget.check_written_out(len(self.follow))
        self.follow.append(following)
        self.sets.append(number)
        return len(self.follow) - 1
