"""The subset construction for positions without conditions, over dense bit sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import int32, int64, njit, uint64
from numpy.typing import NDArray

from grammar_workers.dfa.row_hash import find_row, laid_buckets
from grammar_workers.numba_options import OPTIONS, called_with, readonly

MOST_BITS = 16384
"""Above this, the bit sets of a large automaton take more memory than Python's integers."""
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
    """How many sets of positions are reachable from `start`, their moves int32 [>= n, classes] (-1: nothing), which of
    them hold bit 0, int32 [>= n], and the steps taken, with which it ends early when they are more than `most_steps`.
    With more than `most_states` it ends, too, and TOO_MANY_STATES stands for their number.

    Sets are integers. `follow[bit]` is what may come after a position, `sets[bit]` (-1: none) the number of the set of
    characters that it reads, and `classes_of` has the classes of characters in each such set. Whatever holds a bit of
    `universal` counts as those bits and bit 0 alone. Beside a bit, those of `weaker[bit]` are left out ([]: none are).
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
    """Shift `bits`, not 0 and the first of them `bit`, so that the lowest is set; return them and its number."""
    while not bits & np.uint64(0xFF):
        bits >>= np.uint64(8)
        bit += 8
    while not bits & np.uint64(1):
        bits >>= np.uint64(1)
        bit += 1
    return bits, bit


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
    # What each set of characters leads to, and from that what each class does; those that are not empty.
    by_set = np.zeros((begins.shape[0] - 1, words), np.uint64)
    by_class = np.zeros((many_classes, words), np.uint64)
    read = np.empty(begins.shape[0], np.int64)
    is_read = np.zeros(begins.shape[0], np.bool_)
    reached = np.empty(many_classes, np.int64)
    is_reached = np.zeros(many_classes, np.bool_)
    while done < many:
        accepting[done] = np.int32(subsets[done, 0] & np.uint64(1))
        many_read = 0
        for word in range(words):
            bits = subsets[done, word]
            bit = 64 * word
            while bits:
                bits, bit = _skip_zeros(bits, bit)
                number = sets[bit]
                if number >= 0:
                    steps += 2
                    if not is_read[number]:
                        is_read[number] = True
                        read[many_read] = number
                        many_read += 1
                    for i in range(words):
                        by_set[number, i] |= follow[bit, i]
                bits &= ~np.uint64(1)
        steps += 1 + (follow.shape[0] >> 9) + (many_classes >> 2)
        if steps > most_steps:
            return many, moves, accepting, steps
        many_reached = 0
        for i in range(many_read):
            number = read[i]
            for j in range(begins[number], begins[number + 1]):
                letter = classes[j]
                if not is_reached[letter]:
                    is_reached[letter] = True
                    reached[many_reached] = letter
                    many_reached += 1
                for word in range(words):
                    by_class[letter, word] |= by_set[number, word]
            by_set[number] = 0
            is_read[number] = False
        for i in range(many_reached):
            letter = reached[i]
            bits_after = by_class[letter]
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
