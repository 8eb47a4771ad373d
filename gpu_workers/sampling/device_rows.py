"""Cache of token masks in device memory: each mask is uploaded once, and then found by its index in one table.

The table holds the masks as bits. If it is full, a new mask replaces the least recently used one (LRU).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_workers.sampling.allowed_tokens import AllowedTokens
from gpu_workers.transfers import to_device

_TABLE_NBYTES = 32 << 20


class DeviceRows:
    """Table of token bitmasks (one bit per token) on a device, and the index of each mask. For one thread only.

    Masks are compared by identity (`id`): states of a grammar with equal masks share one object. The indices from a
    call of `places` stay valid after the next call, because the table has room for the masks of two calls.

    Args:
        tokens: Number of tokens, V.
        device: Device of the table.

    Attributes:
        table: The table, int32 [capacity, ceil(V / 32)]. Bit t % 32 of word t // 32 is set if a mask allows token t. A
            growing table becomes a new tensor, so read this attribute after each call of `places`.
        uploaded: Number of masks uploaded so far.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._words = -(-tokens // 32)
        self._device = device
        self._place_of: OrderedDict[int, int] = OrderedDict()  # by identity, least recently used first
        self._kept: dict[int, AllowedTokens] = {}  # by place: no other object takes a row's identity meanwhile
        self.table = self._empty(0)
        # Number of masks uploaded so far.
        self.uploaded = 0

    def places(self, many: int, masked: Sequence[int], rows: Sequence[AllowedTokens]) -> Tensor:
        """Return the table index of the mask of each sequence in a batch.

        Masks that are not in the table are uploaded together, in one copy.

        Args:
            many: Number of sequences in the batch.
            masked: Sequences that have a mask, as indices in [0, many).
            rows: `rows[i]` is the mask of sequence `masked[i]`.

        Returns:
            int64 [many] on the device; -1 for sequences without a mask.
        """
        needed = {id(row): row for row in rows}
        if 2 * len(needed) > len(self.table):
            self._grow(max(2 * len(needed), _TABLE_NBYTES // (self._words * 4)))
        for identity in needed:
            if identity in self._place_of:
                self._place_of.move_to_end(identity)
        new = [identity for identity in needed if identity not in self._place_of]
        if new:
            self._upload([self._take(identity, needed[identity]) for identity in new], [needed[one] for one in new])
        placed = np.full(many, -1)
        placed[list(masked)] = [self._place_of[id(row)] for row in rows]
        return to_device(placed, self._device)

    def _take(self, identity: int, row: AllowedTokens) -> int:
        """Assign an index to a mask: a free one, or that of the least recently used mask."""
        place = len(self._kept)
        if place == len(self.table):
            _, place = self._place_of.popitem(last=False)
        self._place_of[identity] = place
        self._kept[place] = row
        return place

    def _upload(self, places: list[int], rows: list[AllowedTokens]) -> None:
        words = np.zeros((len(rows), self._words), np.uint32)
        for line, row in zip(words, rows, strict=True):
            known = min(len(row.mask), self._words)
            line[:known] = row.mask[:known]
        self.table[to_device(torch.tensor(places), self._device)] = to_device(words.view(np.int32), self._device)
        self.uploaded += len(rows)

    def _grow(self, capacity: int) -> None:
        table = self._empty(capacity)
        table[: len(self.table)] = self.table
        self.table = table

    def _empty(self, capacity: int) -> Tensor:
        return torch.zeros(capacity, self._words, dtype=torch.int32, device=self._device)
