"""Which bytes read which characters, whatever these lead to.

The states of an automaton mostly tell the same characters apart and differ in where these lead. What does not depend on
that is worked out once per shape: targets stand there as numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.charset import Charset, make

_Read = TypeVar("_Read")
ByteRanges: TypeAlias = tuple[tuple[int, int], ...]
"""Inclusive ranges of the (remaining) bytes of UTF-8 characters."""


class Branch(NamedTuple):
    """What follows some first bytes: `rest`, whose target i is target `order[i]`, or target `order[0]` without one."""

    bytes: list[int]
    rest: Bytes | None
    order: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Byte sequences of one or more bytes, none the beginning of another, each with the number of its target.

    Targets are numbered in the order in which `sequences` first mention them.
    """

    sequences: tuple[tuple[ByteRanges, int], ...]

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Shapes are keys of many caches, and may be long."""
        return hash(self.sequences)

    @functools.cached_property
    def many_targets(self) -> int:
        return 1 + max(number for _, number in self.sequences)

    @functools.cached_property
    def branches(self) -> list[Branch]:
        """By what may follow a first byte, in the order of these bytes."""
        # Where more than one first byte stands in a sequence, all that may follow it do: ranges are equal or disjoint.
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
        """Per byte where its state stands in [-1, that of each branch]."""
        slots = np.zeros(256, np.intp)
        for index, branch in enumerate(self.branches):
            slots[branch.bytes] = 1 + index
        return slots


@functools.lru_cache(maxsize=4096)
def _bytes(sequences: tuple[tuple[ByteRanges, int], ...]) -> Bytes:
    """The same few sets of characters occur in every schema."""
    return Bytes(sequences)


@dataclasses.dataclass(frozen=True, eq=False)
class MoveShape:
    """Runs of characters, (first, last, number of the target), in order; targets are numbered as they first occur."""

    ranges: tuple[tuple[int, int, int], ...]

    @functools.cached_property
    def many_targets(self) -> int:
        return 1 + max((number for _, _, number in self.ranges), default=-1)

    @functools.cached_property
    def charsets(self) -> list[Charset]:
        """The characters of each target."""
        by_target: list[list[tuple[int, int]]] = [[] for _ in range(self.many_targets)]
        for low, high, number in self.ranges:
            by_target[number].append((low, high))
        return list(map(make, by_target))

    @functools.cached_property
    def bytes(self) -> Bytes:
        """The same in UTF-8, with the same numbers."""
        return Bytes(
            tuple([(each, number) for first, last, number in self.ranges for each in utf8_sequences(first, last)])
        )


@functools.lru_cache(maxsize=1024)
def row_shape(ranges: tuple[tuple[int, int, int], ...]) -> MoveShape:
    """The shape with these ranges; shared, because it holds what has been worked out."""
    return MoveShape(ranges)


def numbered(targets: Iterable[tuple[_Read, int]]) -> tuple[list[int], tuple[tuple[_Read, int], ...]]:
    """The distinct targets of what is read, and the same with the number of each target in its place."""
    numbers: dict[int, int] = {}
    shape = tuple([(read, numbers.setdefault(target, len(numbers))) for read, target in targets])
    return list(numbers), shape


@functools.lru_cache(maxsize=4096)
def utf8_sequences(first: int, last: int) -> list[ByteRanges]:
    """The code points first..last (no surrogates between) as sequences of inclusive byte ranges.

    Splits at the borders of encoded length, then where leading bytes change (Cox, "Regular expression matching in the
    wild", 2010).
    """
    for border in (0x7F, 0x7FF, 0xFFFF):
        if first <= border < last:
            return utf8_sequences(first, border) + utf8_sequences(border + 1, last)
    if last <= 0x7F:
        return [((first, last),)]
    parts = aligned(first, last, (6, 12, 18))
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True)) for low, high in parts]


def aligned(first: int, last: int, borders: tuple[int, ...]) -> list[tuple[int, int]]:
    """first..last, cut so that in each part the lowest bits run freely wherever those above them differ.

    `borders` are the numbers of bits below which a digit ends, ascending: what is left is a range of each digit.
    """
    for bits in borders:
        mask = (1 << bits) - 1
        if first >> bits != last >> bits:
            if first & mask:
                return aligned(first, first | mask, borders) + aligned((first | mask) + 1, last, borders)
            if last & mask != mask:
                return aligned(first, (last & ~mask) - 1, borders) + aligned(last & ~mask, last, borders)
    return [(first, last)]
