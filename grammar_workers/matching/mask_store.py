"""Storage of masks. Equal masks are stored once, because automata have many more states than distinct masks.

Automata of one vocabulary share equal masks. For example, the masks inside strings or before a digit are equal in many
schemas. Shared masks are often in the processor's cache when the masks of a batch are copied together.
"""

from __future__ import annotations

import functools
import weakref

import numpy as np
from numba import njit, uint32
from numpy.typing import NDArray

from grammar_workers.memo import memoized
from grammar_workers.numba_options import BORROWS, called_with, readonly
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Masks of all automata of one vocabulary, by their digest.
RowPool = weakref.WeakValueDictionary[int, MaskRow]


@memoized
def pool_of(vocabulary: Vocabulary) -> RowPool:
    """Return the pool of masks that all automata of a vocabulary share: a mapping from a hash to the mask.

    The pool has weak references. So a mask is freed when no automaton uses it.

    Args:
        vocabulary: The vocabulary. Every call with the same object returns the same pool.
    """
    return RowPool()


class MaskRows:
    """The distinct masks of one automaton (uint32 [words], read-only), numbered from 0. Mask 0 allows no token.

    `rows[n]` is mask n of the object `rows`. Masks are never changed or moved, so reads need no lock. The caller must
    serialize `add`. If the pool has an equal mask of another automaton, this mask is shared.

    Args:
        words: Number of uint32 words of a mask.
        pool: Masks of all automata of the vocabulary, from `pool_of`.

    Attributes:
        counts: Number of allowed tokens of each mask.
        lowest: ID of the lowest allowed token of each mask; -1 if the mask allows no token.
    """

    def __init__(self, words: int, pool: RowPool) -> None:
        self._pool = pool
        self._rows: list[MaskRow] = []
        self._words = words
        self._weights = _weights_of(words)
        self._by_digest: dict[int, list[int]] = {}
        self.counts: list[int] = []
        self.lowest: list[TokenId] = []
        self.add(np.zeros(words, np.uint32))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> MaskRow:
        return self._rows[number]

    @property
    def nbytes(self) -> int:
        """Memory of all masks of the automaton, in bytes. Masks that are shared with other automata are included."""
        return len(self._rows) * self._words * 4

    def add(self, row: MaskRow) -> int:
        """Store a mask, unless an equal mask is stored already.

        Args:
            row: Mask, uint32 [words]. A new mask is copied, so the caller may change `row` afterwards.

        Returns:
            The number of the stored mask. A new mask gets the next number.
        """
        digest = int(_digest_of(row, self._weights))
        same_digest = self._by_digest.setdefault(digest, [])
        for number in same_digest:
            if _equal(self._rows[number], row):
                return number
        stored = self._pool.get(digest)
        if stored is None or not _equal(stored, row):
            stored = row.copy()
            stored.setflags(write=False)
            self._pool[digest] = stored
        count, lowest = count_tokens(stored)
        self.counts.append(count)
        self.lowest.append(lowest)
        self._rows.append(stored)
        same_digest.append(len(self._rows) - 1)
        return len(self._rows) - 1


@functools.lru_cache(maxsize=16)
def _weights_of(words: int) -> NDArray[np.uint32]:
    """Return one odd number for each word of a mask, uint32 [words]."""
    return np.random.default_rng(0).integers(0, 1 << 31, words, np.uint32) * np.uint32(2) + np.uint32(1)


@called_with(uint32[::1], uint32[::1])
@njit(**BORROWS)
def _digest_of(row, weights):  # type: ignore[no-untyped-def]
    """Return a multilinear hash (uint64) of a mask with the weights of `_weights_of`."""
    digest = np.uint64(0)
    for word in range(row.shape[0]):
        digest += np.uint64(row[word]) * np.uint64(weights[word])
    return digest


@called_with(readonly(uint32[::1]))
@njit(**BORROWS)
def count_tokens(row):  # type: ignore[no-untyped-def]
    """Return the pair (number of set bits of a mask, index of the lowest set bit or -1 if no bit is set).

    Args:
        row: Mask, uint32 [words].
    """
    count = np.int64(0)
    for word in range(row.shape[0]):
        bits = row[word]
        # Population count by sums in ever wider fields (Hacker's Delight, 5-1).
        bits -= (bits >> np.uint32(1)) & np.uint32(0x55555555)
        bits = (bits & np.uint32(0x33333333)) + ((bits >> np.uint32(2)) & np.uint32(0x33333333))
        bits = (bits + (bits >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        count += np.int64(np.uint32(bits * np.uint32(0x01010101)) >> np.uint32(24))
    lowest = np.int64(-1)
    for word in range(row.shape[0]):
        if row[word]:
            lowest = np.int64(word) * 32
            while (row[word] >> np.uint32(lowest & 31)) & np.uint32(1) == 0:
                lowest += 1
            break
    return count, lowest


@called_with(readonly(uint32[::1]), uint32[::1])
@njit(**BORROWS)
def _equal(row, other):  # type: ignore[no-untyped-def]
    """Compare without an early exit, so that the compiler vectorizes the loop."""
    different = np.uint32(0)
    for word in range(row.shape[0]):
        different |= row[word] ^ other[word]
    return different == 0
