"""Mask rows interned by content: automata have many more states than different rows."""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.kernels import OPTIONS
from grammar_workers.types import MaskRow, TokenId

_ROWS_PER_CHUNK = 64


class MaskRows:
    """Rows (uint32 [words], read-only) by number; number 0 is the empty row.

    Rows sit in chunks that never move and are published last, so readers of known numbers need no lock; the caller
    serialises `add`.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self._rows: list[MaskRow] = []
        # One odd 64-bit number for each word.
        self._weights = np.random.default_rng(0).integers(0, 1 << 63, words, np.uint64) * np.uint64(2) + np.uint64(1)
        self._chunk = np.zeros((0, words), np.uint32)
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
        return len(self._rows) * self._words * 4

    def add(self, row: MaskRow) -> int:
        """The number of the row with this content, copied when it is new."""
        count, lowest, digest = _summarize(row, self._weights)
        same_digest = self._by_digest.setdefault(int(digest), [])
        for number in same_digest:
            if np.array_equal(self._rows[number], row):
                return number
        position = len(self._rows) % _ROWS_PER_CHUNK
        if position == 0:
            self._chunk = np.empty((_ROWS_PER_CHUNK, self._words), np.uint32)
        stored = self._chunk[position]
        stored[:] = row
        stored.flags.writeable = False
        self.counts.append(count)
        self.lowest.append(lowest)
        self._rows.append(stored)
        same_digest.append(len(self._rows) - 1)
        return len(self._rows) - 1


@njit(**OPTIONS)
def _summarize(row, weights):  # type: ignore[no-untyped-def]
    """(number of set bits, the lowest set bit or -1, a 64-bit multilinear hash) of a mask row, in one pass."""
    count = np.int64(0)
    digest = np.uint64(0)
    for word in range(row.shape[0]):
        bits = row[word]
        digest += np.uint64(bits) * weights[word]
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
    return count, lowest, digest
