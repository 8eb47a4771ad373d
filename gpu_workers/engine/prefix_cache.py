"""Prefix caching: a new sequence reuses keys and values of an earlier sequence that begins with the same tokens.

Prefixes are compared by token IDs alone, because keys and values depend only on the tokens up to their position. A slot
of the KV cache keeps its content after its sequence has ended, until another sequence needs the slot. The new sequence
gets the slot with the longest common prefix. If this slot belongs to a running sequence, the keys and values of the
prefix are copied to another slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpu_workers.model.kv_pool import KVPool
from gpu_workers.sequence.sequence import Sequence


class PrefixCache:
    """Assigns slots of the KV cache to sequences, and reuses the contents of slots as prefixes.

    The cache stores the token IDs of each free slot that still has content. If no free slot has a common prefix with a
    sequence, the sequence gets a free slot without content, or else the least recently released slot.

    Args:
        pool: The KV cache.
        shortest: Minimum number of equal leading tokens. Shorter common prefixes are not reused.
    """

    def __init__(self, pool: KVPool, shortest: int) -> None:
        self._pool = pool
        self._shortest = shortest
        self._held: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    def acquire(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[int, int]:
        """Assign a free slot of the KV cache to a sequence, with the keys and values of its longest cached prefix.

        If a free slot holds the longest prefix, this slot is assigned. If the slot of a running sequence holds it, the
        keys and values are copied to the assigned slot. A prefix never contains the last token of the sequence.

        Args:
            sequence: A sequence without a slot. It is not changed.
            running: Sequences that hold a slot, from which prefixes can be copied.

        Returns:
            Pair of the slot's index and the number of leading tokens whose keys and values the slot already holds (0 if
            there is no common prefix).
        """
        source, length = self._longest(np.array(sequence.token_ids[:-1], np.int64), running)
        if source in self._held:
            del self._held[source]
            self._pool.take(source)
            return source, length
        slot = self._pool.acquire(avoid=self._held)
        if slot is None:
            slot, _ = self._held.popitem(last=False)
            self._pool.take(slot)
        if length:
            self._pool.copy(source, slot, length)
        return slot, length

    def release(self, slot: int, token_ids: list[int], written: int, *, keep: bool) -> None:
        """Free a slot of the KV cache.

        Args:
            slot: The slot.
            token_ids: Tokens whose keys and values are in the slot, from position 0.
            written: Number of positions of the slot that may have been written, at least `len(token_ids)`.
            keep: If true and `token_ids` has at least the minimum length of a prefix, the content stays in the slot for
                reuse. Otherwise the first `written` positions are set to zero.
        """
        if keep and len(token_ids) >= self._shortest:
            self._held[slot] = np.array(token_ids, np.int64)
            written = 0
        self._pool.release(slot, written)

    def _longest(self, token_ids: NDArray[np.int64], running: Iterable[Sequence]) -> tuple[int, int]:
        """Return the slot with the longest prefix of `token_ids` and the length of the prefix; (-1, 0) if none has one.

        Among equal ones, a free slot is preferred: it needs no copy.
        """
        lengths = {slot: common_length(token_ids, held) for slot, held in self._held.items()}
        for sequence in running:
            if sequence.slot is not None and sequence.length >= self._shortest:
                computed = np.array(sequence.token_ids[: sequence.length], np.int64)
                lengths[sequence.slot] = common_length(token_ids, computed)
        longest = max(lengths.items(), key=lambda found: found[1], default=(-1, 0))
        return longest if longest[1] >= self._shortest else (-1, 0)


def common_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return the length of the common prefix of two arrays of token IDs.

    Args:
        one: Token IDs, int64 [m].
        other: Token IDs, int64 [n].

    Returns:
        Number of equal leading tokens, from 0 to min(m, n).
    """
    shorter = min(len(one), len(other))
    different = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(different[0]) if len(different) else shorter
