"""Mask rows interned by content: automata have many more states than different rows.

Automata of one vocabulary share equal rows, too: those inside of strings, between names and values, before a digit are
the same in many schemas, and stay in the processor's cache when the rows of a batch are gathered.
"""

from __future__ import annotations

import functools
import weakref

import numpy as np
from numba import njit, uint32
from numpy.typing import NDArray

from grammar_workers.numba_options import BORROWS, called_with, readonly
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

RowPool = weakref.WeakValueDictionary[int, MaskRow]
"""Rows that any automaton of one vocabulary holds, by their digest."""
_pools: weakref.WeakKeyDictionary[Vocabulary, RowPool] = weakref.WeakKeyDictionary()


def pool_of(vocabulary: Vocabulary) -> RowPool:
    """The rows that all automata of a vocabulary share."""
    return _pools.setdefault(vocabulary, RowPool())


class MaskRows:
    """Rows (uint32 [words], read-only) by number; number 0 is the empty row.

    Rows never move and are published last, so readers of known numbers need no lock; the caller serialises `add`. A row
    that another automaton of the same `pool` holds is not copied.
    """

    def __init__(self, words: int, pool: RowPool) -> None:
        self._words = words
        self._pool = pool
        self._rows: list[MaskRow] = []
        self._weights = _weights_of(words)
        self._by_digest: dict[int, list[int]] = {}
        self.counts: list[int] = []
        """Allowed tokens of each row."""
        self.lowest: list[TokenId] = []
        """The lowest allowed token of each row, -1 for the empty one."""
        self.add(np.zeros(words, np.uint32))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> MaskRow:
        return self._rows[number]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, whether others hold them, too, or not."""
        return len(self._rows) * self._words * 4

    def add(self, row: MaskRow) -> int:
        """The number of the row with this content, copied when it is new."""
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
    """One odd number for each word of a row, uint32 [words]."""
    return np.random.default_rng(0).integers(0, 1 << 31, words, np.uint32) * np.uint32(2) + np.uint32(1)


@called_with(uint32[::1], uint32[::1])
@njit(**BORROWS)
def _digest_of(row, weights):  # type: ignore[no-untyped-def]
    """A multilinear hash (uint64) of a mask row; `weights` are those of `_weights_of`."""
    digest = np.uint64(0)
    for word in range(row.shape[0]):
        digest += np.uint64(row[word]) * np.uint64(weights[word])
    return digest


@called_with(readonly(uint32[::1]))
@njit(**BORROWS)
def count_tokens(row):  # type: ignore[no-untyped-def]
    """The number of set bits of a mask row, and the lowest set bit or -1."""
    count = np.int64(0)
    for word in range(row.shape[0]):
        bits = row[word]
        # The number of set bits, summed up in ever wider fields (Hacker's Delight, 5-1).
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
    """Without a way out of the loop, it compares many words at once."""
    different = np.uint32(0)
    for word in range(row.shape[0]):
        different |= row[word] ^ other[word]
    return different == 0
