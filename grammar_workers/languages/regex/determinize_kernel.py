"""Subset construction for patterns without look-arounds, in compiled code.

Sets of NFA states are dense bit sets. A *position* is a state of a Glushkov NFA: it reads one character of the pattern.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import int32, int64, njit, uint64
from numpy.typing import NDArray

from grammar_workers.dfa.row_hash import find_row, laid_buckets
from grammar_workers.numba_options import INNER, OPTIONS, called_with, readonly

# Maximum number of positions. The bit sets of a larger automaton take more memory than Python's integers.
MOST_BITS = 16384
# The returned number of states if it exceeds the limit.
TOO_MANY_STATES = -1


def reachable_subsets(
    start: int,
    follow: Sequence[int],
    sets: Sequence[int],
    classes_of: Sequence[Sequence[int]],
    universal: int,
    weaker: Sequence[int],
    *,
    many_classes: int,
    most_states: int,
    most_steps: int,
) -> tuple[int, NDArray[np.int32], NDArray[np.int32], int]:
    """Compute all reachable sets of NFA positions. Each set is a state of the DFA before minimization.

    Sets of positions are integers: bit i is set if position i is in the set. Bit 0 means that the text may end.

    Args:
        start: The set before the first character.
        follow: For each position, the set of positions that may follow it.
        sets: For each position, the number of the character set that it reads; -1 for none.
        classes_of: For each character set, the numbers of the classes of characters in it.
        universal: Positions after which every text is accepted. A set that contains one of them is replaced by
            `universal` and bit 0.
        weaker: For each position p, the redundant positions: they are removed from each set that contains p. []: none.
        many_classes: Number of classes of characters.
        most_states: Maximum number of sets.
        most_steps: Maximum number of steps of work. The search stops when it takes more.

    Returns:
        Four values:

        1. The number n of sets. TOO_MANY_STATES (-1) if there are more than `most_states`.
        2. The number of the next set for each set and class, int32 [>= n, many_classes]. -1: none.
        3. 1 for each set that contains bit 0, else 0, int32 [>= n].
        4. The number of steps taken. If it exceeds `most_steps`, the other values are incomplete.
    """
    words = (len(follow) + 63) >> 6
    rows = [start, universal, *follow, *weaker]
    dense = np.frombuffer(b"".join([bits.to_bytes(8 * words, "little") for bits in rows]), np.uint64)
    begins = np.cumsum([0, *map(len, classes_of)])
    classes = np.array([number for members in classes_of for number in members], np.int32)
    return _subsets(
        dense.reshape(-1, words), np.array(sets, np.int32), begins, classes, many_classes, most_states, most_steps
    )


@njit(inline="always", **OPTIONS)
def _skip_zeros(bits, bit):  # type: ignore[no-untyped-def]
    """Return nonzero `bits`, bit 0 of which has number `bit`, shifted until bit 0 is set, and its number."""
    while not bits & np.uint64(0xFF):
        bits >>= np.uint64(8)
        bit += 8
    while not bits & np.uint64(1):
        bits >>= np.uint64(1)
        bit += 1
    return bits, bit


@njit(**OPTIONS, **INNER)
def _read(subset, sets, follow, by_set, read, is_read):  # type: ignore[no-untyped-def]
    """Add the bits after one character to `by_set`, for each character set that the positions of `subset` read.

    Returns:
        The number of these sets, whose numbers are written to `read`, and the number of the positions.
    """
    many_read = 0
    positions = 0
    for word in range(subset.shape[0]):
        bits = subset[word]
        bit = 64 * word
        while bits:
            bits, bit = _skip_zeros(bits, bit)
            number = sets[bit]
            if number >= 0:
                positions += 1
                if not is_read[number]:
                    is_read[number] = True
                    read[many_read] = number
                    many_read += 1
                for i in range(subset.shape[0]):
                    by_set[number, i] |= follow[bit, i]
            bits &= ~np.uint64(1)
    return many_read, positions


@njit(**OPTIONS, **INNER)
def _spread(by_set, read, is_read, begins, classes, by_class, reached, is_reached):  # type: ignore[no-untyped-def]
    """Move the bits of `by_set` to `by_class`. Return the number of classes, whose numbers are written to `reached`."""
    many_reached = 0
    for number in read:
        for j in range(begins[number], begins[number + 1]):
            letter = classes[j]
            if not is_reached[letter]:
                is_reached[letter] = True
                reached[many_reached] = letter
                many_reached += 1
            for word in range(by_set.shape[1]):
                by_class[letter, word] |= by_set[number, word]
        by_set[number] = 0
        is_read[number] = False
    return many_reached


@njit(**OPTIONS, **INNER)
def _reduce(bits_after, universal, weaker):  # type: ignore[no-untyped-def]
    """Remove the redundant bits of a set, in place. Return the number of steps."""
    steps = 0
    words = bits_after.shape[0]
    for word in range(words):
        if bits_after[word] & universal[word]:
            bits_after[:] = universal
            bits_after[0] |= np.uint64(1)
            break
    for word in range(words if weaker.shape[0] else 0):
        bits = bits_after[word]
        bit = 64 * word
        while bits:
            bits, bit = _skip_zeros(bits, bit)
            steps += 1
            for i in range(words):
                bits_after[i] &= ~weaker[bit, i]
            bits &= ~np.uint64(1)
    return steps


@called_with(readonly(uint64[:, ::1]), int32[::1], int64[::1], int32[::1], int64, int64, int64)
@njit(**OPTIONS)
def _subsets(rows, sets, begins, classes, many_classes, most_states, most_steps):  # type: ignore[no-untyped-def]
    words = rows.shape[1]
    universal, follow, weaker = rows[1], rows[2 : 2 + sets.shape[0]], rows[2 + sets.shape[0] :]
    subsets = np.zeros((64, words), np.uint64)
    moves = np.full((64, many_classes), -1, np.int32)
    accepting = np.zeros(64, np.int32)
    subsets[0] = rows[0]
    buckets = laid_buckets(subsets, np.int64(1))
    many = np.int64(1)
    done = np.int64(0)
    steps = np.int64(0)
    # The successors by character set and then by class, and the numbers of those that are not empty.
    by_set = np.zeros((begins.shape[0] - 1, words), np.uint64)
    by_class = np.zeros((many_classes, words), np.uint64)
    read = np.empty(begins.shape[0], np.int64)
    is_read = np.zeros(begins.shape[0], np.bool_)
    reached = np.empty(many_classes, np.int64)
    is_reached = np.zeros(many_classes, np.bool_)
    while done < many:
        accepting[done] = np.int32(subsets[done, 0] & np.uint64(1))
        many_read, positions = _read(subsets[done], sets, follow, by_set, read, is_read)
        steps += 2 * positions + 1 + (follow.shape[0] >> 9) + (many_classes >> 2)
        if steps > most_steps:
            return many, moves, accepting, steps
        many_reached = _spread(by_set, read[:many_read], is_read, begins, classes, by_class, reached, is_reached)
        for i in range(many_reached):
            letter = reached[i]
            bits_after = by_class[letter]
            steps += _reduce(bits_after, universal, weaker)
            found = find_row(subsets, buckets, bits_after)
            if found < 0:
                if many >= most_states:
                    return np.int64(-1), moves, accepting, steps
                if many == subsets.shape[0]:
                    subsets = np.concatenate((subsets, np.zeros_like(subsets)))
                    moves = np.concatenate((moves, np.full_like(moves, -1)))
                    accepting = np.concatenate((accepting, np.zeros_like(accepting)))
                    buckets = laid_buckets(subsets, many)
                    found = find_row(subsets, buckets, bits_after)
                subsets[many] = bits_after
                buckets[-1 - found] = many
                found = many
                many += 1
            moves[done, letter] = found
            by_class[letter] = 0
            is_reached[letter] = False
        done += 1
    return many, moves, accepting, steps
