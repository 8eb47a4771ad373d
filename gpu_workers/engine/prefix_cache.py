"""Prefix reuse: whose keys and values each slot holds, so that an equal beginning is copied and not computed again.

Token ids decide alone: keys and values depend on nothing but the tokens up to their position. A slot keeps its content
when its sequence leaves, until somebody else needs the slot; running sequences lend their prefixes, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_workers.model.kv_pool import KVPool
from gpu_workers.sequence.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `length` positions of `slot` are what a sequence begins with."""

    slot: int
    length: int


class PrefixCache:
    """Gives out the pool's slots and remembers what the free ones hold, the longest unused first to go.

    `shortest`: a shorter common beginning is not worth a copy.
    """

    def __init__(self, pool: KVPool, shortest: int) -> None:
        self._pool = pool
        self._shortest = shortest
        self._held: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    def acquire(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[int, int] | None:
        """A slot for `sequence` and how many of its tokens are computed in it already; None when all are taken."""
        if not self._pool.free_slots:
            return None
        prefix = self._longest(np.array(sequence.token_ids[:-1], np.int64), running)
        if prefix is not None and prefix.slot in self._held:
            del self._held[prefix.slot]
            self._pool.take(prefix.slot)
            return prefix.slot, prefix.length
        slot = self._pool.acquire(avoid=self._held)
        if slot is None:
            slot, _ = self._held.popitem(last=False)
            self._pool.take(slot)
        if prefix is None:
            return slot, 0
        self._pool.copy(prefix.slot, slot, prefix.length)
        return slot, prefix.length

    def release(self, slot: int, token_ids: list[int], written: int, *, keep: bool) -> None:
        """Gives `slot` back: `token_ids` are computed in it, `written` places used. Not `keep`: wipes them."""
        if keep and len(token_ids) >= self._shortest:
            self._held[slot] = np.array(token_ids, np.int64)
            written = 0
        self._pool.release(slot, written)

    def _longest(self, token_ids: NDArray[np.int64], running: Iterable[Sequence]) -> Prefix | None:
        """The longest beginning of `token_ids` in any slot; of equal ones a free slot's, which needs no copy."""
        best: Prefix | None = None
        for slot, held in self._held.items():
            best = _longer(best, Prefix(slot, common_length(token_ids, held)))
        for sequence in running:
            if sequence.slot is not None and sequence.length >= self._shortest:
                computed = np.array(sequence.token_ids[: sequence.length], np.int64)
                best = _longer(best, Prefix(sequence.slot, common_length(token_ids, computed)))
        return best if best is not None and best.length >= self._shortest else None


def _longer(one: Prefix | None, other: Prefix) -> Prefix:
    return other if one is None or other.length > one.length else one


def common_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Length of the common beginning of two rows of token ids, int64."""
    shorter = min(len(one), len(other))
    different = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(different[0]) if len(different) else shorter
