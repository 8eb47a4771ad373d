"""UTF-8 byte sequences of character ranges, independent of the states that they lead to.

Most states of an automaton split the characters into the same classes and differ only in their target states. A *shape*
describes this split: it maps characters to *target numbers* instead of states. 0 is the first target that occurs in the
shape, 1 the next different one. Values that depend only on a shape are computed once for all states that share it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.charset import Charset, make
from grammar_workers.dfa.row_hash import DEAD

_Read = TypeVar("_Read")
# Inclusive ranges of the bytes of a UTF-8 character, or of the bytes that remain of it; one pair per byte.
ByteRanges: TypeAlias = tuple[tuple[int, int], ...]


class Branch(NamedTuple):
    """Group of first bytes in a set of byte sequences: after each of these bytes, the same sequences may follow.

    A target number stands for the state that a sequence leads to (see `Bytes`).

    Attributes:
        bytes: The first bytes, 0 to 255.
        rest: The remaining sequences; None if the first byte completes the character.
        order: Converts target numbers: a remaining sequence with target number i completes a sequence with target
            number `order[i]`. If `rest` is None, `order[0]` is the target number.
    """

    bytes: list[int]
    rest: Bytes | None
    order: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Bytes:
    """A set of UTF-8 byte sequences, each with a target number. No sequence is a prefix of another.

    A target number stands for the state that a sequence leads to. So states that differ only in their targets share the
    set. Numbers are given from 0 in the order of first occurrence.

    Attributes:
        sequences: Pairs (byte ranges, target number). Byte ranges have an inclusive pair (first, last) for each byte,
            and at least one.
    """

    sequences: tuple[tuple[ByteRanges, int], ...]

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """The hash, computed once: shapes are keys of many caches and may be long."""
        return hash(self.sequences)

    @functools.cached_property
    def many_targets(self) -> int:
        """Number of different target numbers."""
        return 1 + max(number for _, number in self.sequences)

    @functools.cached_property
    def branches(self) -> list[Branch]:
        """Groups of first bytes after which the same sequences may follow, in the order of first occurrence."""
        # Ranges of first bytes are equal or disjoint, so all bytes of one range have the same continuations.
        by_bounds: dict[tuple[int, int], list[tuple[ByteRanges, int]]] = {}
        for sequence, number in self.sequences:
            by_bounds.setdefault(sequence[0], []).append((sequence[1:], number))
        groups: dict[tuple[tuple[ByteRanges, int], ...], list[int]] = {}
        for (first, last), options in by_bounds.items():
            groups.setdefault(tuple(options), []).extend(range(first, last + 1))
        found = []
        for rests, first_bytes in groups.items():
            order, shape = numbered(rests)
            found.append(Branch(first_bytes, _bytes(shape) if shape[0][0] else None, tuple(order)))
        return found

    @functools.cached_property
    def slots(self) -> NDArray[np.intp]:
        """For each byte, 1 + the index of its branch in `branches`; 0 if no sequence begins with it, intp [256]."""
        slots = np.zeros(256, np.intp)
        for index, branch in enumerate(self.branches):
            slots[branch.bytes] = 1 + index
        return slots

    def row(self, targets: Sequence[int], inside: Callable[[Bytes, tuple[int, ...]], int]) -> NDArray[np.int32]:
        """Return the state after each first byte, -1 for none, int32 [256].

        Args:
            targets: State that each target number stands for.
            inside: Returns the state after a first byte that does not complete a character. Its arguments are the
                remaining sequences, and the state that each of their target numbers stands for.
        """
        after = [
            targets[order[0]] if rest is None else inside(rest, tuple([targets[number] for number in order]))
            for _, rest, order in self.branches
        ]
        return np.array([DEAD, *after], np.int32)[self.slots]


@functools.lru_cache(maxsize=4096)
def _bytes(sequences: tuple[tuple[ByteRanges, int], ...]) -> Bytes:
    """Return a shared `Bytes`: the same few sets of characters occur in every schema."""
    return Bytes(sequences)


@dataclasses.dataclass(frozen=True, eq=False)
class MoveShape:
    """Map from the characters that a state can read to target numbers, which stand for target states.

    States that differ only in their targets share the shape. Numbers are given from 0 in the order of first occurrence.

    Attributes:
        ranges: Triples (first character, last character, target number), ascending; both ends are inclusive code
            points.
    """

    ranges: tuple[tuple[int, int, int], ...]

    @functools.cached_property
    def many_targets(self) -> int:
        """Number of different target numbers; 0 if there are no ranges."""
        return 1 + max((number for _, _, number in self.ranges), default=-1)

    @functools.cached_property
    def charsets(self) -> list[Charset]:
        """For each target number, the set of characters that lead to it."""
        by_target: list[list[tuple[int, int]]] = [[] for _ in range(self.many_targets)]
        for low, high, number in self.ranges:
            by_target[number].append((low, high))
        return list(map(make, by_target))

    @functools.cached_property
    def bytes(self) -> Bytes:
        """The UTF-8 byte sequences of the ranges, with the target numbers of the ranges."""
        return Bytes(
            tuple([(each, number) for first, last, number in self.ranges for each in utf8_sequences(first, last)])
        )


@functools.lru_cache(maxsize=1024)
def row_shape(ranges: tuple[tuple[int, int, int], ...]) -> MoveShape:
    """Return the shape (map from characters to target numbers) with the given ranges.

    Equal ranges give the same object, because the object caches values that are computed from the ranges.

    Args:
        ranges: Triples (first character, last character, target number), ascending; both ends are inclusive code
            points.
    """
    return MoveShape(ranges)


def shape_of(ranges: Iterable[tuple[int, int, int]]) -> tuple[list[int], MoveShape]:
    """Split the moves of a state into its target states and their shape (map from characters to target numbers).

    Args:
        ranges: Triples (first character, last character, target state), ascending; both ends are inclusive code points.

    Returns:
        The state that each target number stands for, and the shape.
    """
    targets, runs = numbered(((first, last), target) for first, last, target in ranges)
    return targets, row_shape(tuple([(*characters, number) for characters, number in runs]))


def numbered(targets: Iterable[tuple[_Read, int]]) -> tuple[list[int], tuple[tuple[_Read, int], ...]]:
    """Replace each target by its number, counted from 0 in the order of first occurrence.

    Args:
        targets: Pairs (item, target). An item is a character or a sequence of bytes. A target is an integer.

    Returns:
        A list and a tuple. Item i of the list is the target with number i. The tuple has the pairs (item, number of its
        target), in the given order. Example: for `[(a, 7), (b, 5), (c, 7)]`, they are `[7, 5]` and `((a, 0), (b, 1),
        (c, 0))`.
    """
    numbers: dict[int, int] = {}
    shape = tuple([(read, numbers.setdefault(target, len(numbers))) for read, target in targets])
    return list(numbers), shape


@functools.lru_cache(maxsize=4096)
def utf8_sequences(first: int, last: int) -> list[ByteRanges]:
    """Return the UTF-8 encodings of a range of code points as sequences of inclusive byte ranges.

    The range is split where the encoded length changes, then where leading bytes change.

    Args:
        first: First code point.
        last: Last code point, inclusive; there must be no surrogates from `first` to `last`.

    Returns:
        Sequences with a pair (first byte, last byte) for each byte. All combinations of bytes from the pairs of a
        sequence encode code points of the range. Example: the range U+00E0 to U+00FF has one sequence, ((0xC3, 0xC3),
        (0xA0, 0xBF)).

    Reference: Cox 2010, "Regular expression matching in the wild".
    """
    for border in (0x7F, 0x7FF, 0xFFFF):
        if first <= border < last:
            return utf8_sequences(first, border) + utf8_sequences(border + 1, last)
    if last <= 0x7F:
        return [((first, last),)]
    parts = aligned(first, last, (6, 12, 18))
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True)) for low, high in parts]


def aligned(first: int, last: int, borders: tuple[int, ...]) -> list[tuple[int, int]]:
    """Split a range of integers into parts that can be described by one range for each digit.

    A digit is a group of bits of the integer, such as the 6 bits in a byte of UTF-8. Example: with digits of 4 bits,
    0x13 to 0x45 is split into 0x13 to 0x1F, 0x20 to 0x3F, and 0x40 to 0x45. In the second part, the high digit is 2 or
    3, and the low digit has any value.

    Args:
        first: First integer.
        last: Last integer, inclusive.
        borders: Bit positions at which digits end, ascending, such as (6, 12, 18) for the bytes of UTF-8.

    Returns:
        Pairs (first, last), both inclusive, ascending. If a digit differs within a pair, all lower digits take every
        value.
    """
    for bits in borders:
        mask = (1 << bits) - 1
        if first >> bits != last >> bits:
            if first & mask:
                return aligned(first, first | mask, borders) + aligned((first | mask) + 1, last, borders)
            if last & mask != mask:
                return aligned(first, (last & ~mask) - 1, borders) + aligned(last & ~mask, last, borders)
    return [(first, last)]
