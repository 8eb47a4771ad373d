"""Nondeterministic automata whose states are the positions of a pattern's characters (Glushkov, 1961).

A set of positions is an integer: bit 0 tells that the text may end, every other bit stands for a position, whose
character comes next, or for a *gate*: a condition, behind which further bits lie. For `a(b|$)*`:

    bit 1 'a'  then {2, 3, 0}      bit 2 'b'  then {2, 3, 0}      bit 3 gate: nothing follows, then {2, 3, 0}
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

from grammar_workers.budget import budget_of
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.options import Limits

ENDS = 1
"""The bit that tells that the text may end."""


class Condition(enum.Enum):
    """What a gate asks of the position reached; `Gate.index` says which sub-automaton is meant."""

    AT_START = enum.auto()
    AT_END = enum.auto()
    AHEAD = enum.auto()
    BEHIND = enum.auto()
    COUNTED = enum.auto()
    """No condition: one more repetition of a counted part has been read."""


@dataclasses.dataclass(frozen=True)
class Gate:
    """A condition at a position: where it holds, the bits of `target` are reached, too, without reading a character."""

    condition: Condition
    index: int
    negative: bool
    target: int


Alphabet: TypeAlias = dict[Charset, int]
"""The character sets of one pattern, those of its look-arounds included, each with a number."""


class GlushkovNfa:
    """An NFA without silent moves but for gates: a state per position of the pattern, sets of states as integers.

    `start` are the bits before the first character, `follow[bit]` those after the character of a position, `sets[bit]`
    the number of its character set (-1 for gates). It is built from the end of the pattern to its beginning: a part is
    made when the bits of what may follow it are known. For `ab?`, with bit 0 (`ENDS`) where the text may end:

        bit 1: 'b', follow {0}      bit 2: 'a', follow {0, 1}      start {2}
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
        """The bit of a position after which every text is accepted."""
        self._direct: dict[int, list[int]] = {}

    def position(self, characters: Charset, following: int) -> int:
        """The bits of a new position that reads one of `characters`, no bits when there are none."""
        if not characters:
            return 0
        return 1 << self._append(self._alphabet.setdefault(characters, len(self._alphabet)), following)

    def gate(self, condition: Condition, following: int, *, index: int = 0, negative: bool = False) -> int:
        bit = self._append(-1, 0)
        self.gates[bit] = Gate(condition, index, negative, following)
        self.gate_bits |= 1 << bit
        return 1 << bit

    def any_text(self, following: int) -> int:
        """The bits of any number of any characters before `following`."""
        bit = self.position(ALL, 0)
        self.follow[-1] = bit | following
        return bit | following

    def rest(self) -> int:
        """The bits of any text up to the end."""
        bits = self.any_text(ENDS)
        self.universal = bits & ~ENDS
        return bits

    def loop(self) -> int:
        """Begin a part that may be repeated: the bit that stands for its repetition until `close_loop`."""
        return 1 << self._append(-1, 0)

    def close_loop(self, loop: int, first: int, following: int) -> int:
        """Let the part that begins with `first`, built since `loop`, be followed by itself or by `following`."""
        repeated = (first & ~loop) | following
        for bit in range(loop.bit_length(), len(self.follow)):
            if self.follow[bit] & loop:
                self.follow[bit] = (self.follow[bit] & ~loop) | repeated
            elif bit in self.gates and self.gates[bit].target & loop:
                gate = self.gates[bit]
                self.gates[bit] = dataclasses.replace(gate, target=(gate.target & ~loop) | repeated)
        return repeated

    def note_copies(self, begin: int, many: int) -> None:
        """Note that the bits from `begin` on are those of `many` copies of a part, behind each of which its end may be.

        They are built from the last to the first, and whatever follows in a copy may follow in one before it, too.
        """
        size = (len(self.follow) - begin) // max(many, 1)
        for bit in range(begin + size, len(self.follow)):
            self._direct.setdefault(bit, []).append(bit - size)

    def weaker(self) -> list[int]:
        """Return for each bit those that add nothing beside it: what they accept, it does; [] where there are none.

        So of `([a-z]{1,8} ?){1,40}` the fewest repetitions count alone, of all that a text may be read as.
        """
        found = [0] * len(self.follow) if self._direct else []
        # A bit is built after the bits that are weaker.
        for bit, others in sorted(self._direct.items()):
            for other in others:
                found[bit] |= found[other] | 1 << other
        return found

    def _append(self, number: int, following: int) -> int:
        self._budget.check_written_out(len(self.follow))
        self.follow.append(following)
        self.sets.append(number)
        return len(self.follow) - 1
