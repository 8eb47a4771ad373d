"""Mask rows on the device: each goes up once, packed, and is found by its place ever after.

row (an object of the host) --places--> 0 .. capacity - 1: a line of one tensor, that of the row used longest ago
                                        when all are taken
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
    """The table, and which row is where. One thread only.

    Rows are known by identity: an automaton's rows live as long as it does, and states with equal ones share one. What
    one call of `places` names stays where it is through the next call.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._words = -(-tokens // 32)
        self._device = device
        self._place_of: OrderedDict[int, int] = OrderedDict()  # by identity, least recently used first
        self._kept: dict[int, AllowedTokens] = {}  # by place: no other object takes a row's identity meanwhile
        self._table = self._empty(0)
        self.uploaded = 0
        """How many rows have gone up."""

    @property
    def table(self) -> Tensor:
        """int32 [capacity, W]: bit t % 32 of word t // 32 is token t. Another tensor after it had to grow."""
        return self._table

    def places(self, many: int, masked: Sequence[int], rows: Sequence[AllowedTokens]) -> Tensor:
        """Where the mask rows of `many` lines are, int64 [many] on the device; -1 for lines without one.

        `rows[i]` is that of line `masked[i]`. Rows that are not there yet go up together.
        """
        needed = {id(row): row for row in rows}
        if 2 * len(needed) > len(self._table):
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
        """A free place, or that of the row used longest ago."""
        place = len(self._kept)
        if place == len(self._table):
            _, place = self._place_of.popitem(last=False)
        self._place_of[identity] = place
        self._kept[place] = row
        return place

    def _upload(self, places: list[int], rows: list[AllowedTokens]) -> None:
        words = np.zeros((len(rows), self._words), np.uint32)
        for line, row in zip(words, rows, strict=True):
            known = min(len(row.mask), self._words)
            line[:known] = row.mask[:known]
        self._table[to_device(torch.tensor(places), self._device)] = to_device(words.view(np.int32), self._device)
        self.uploaded += len(rows)

    def _grow(self, capacity: int) -> None:
        table = self._empty(capacity)
        table[: len(self._table)] = self._table
        self._table = table

    def _empty(self, capacity: int) -> Tensor:
        return torch.zeros(capacity, self._words, dtype=torch.int32, device=self._device)
