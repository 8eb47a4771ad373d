"""The tokens that one row may draw: a packed mask, counted, and listed where they are few."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.sampling.masked_scores import unpacked


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The mask row of one state, read once.

    `mask` uint32 [ceil(V / 32)]; `count` of its bits; `token_ids` int64 [count], ascending, or None when there are more
    than the engine's `sparse_limit`; `only_end`: nothing but end tokens may follow, the output is complete here.
    """

    mask: NDArray[np.uint32]
    count: int
    token_ids: NDArray[np.int64] | None
    only_end: bool

    def without(self, token_ids: Collection[int]) -> AllowedTokens:
        """The row without some of its tokens; it may be empty then."""
        gone = np.array(sorted(token_ids), dtype=np.int64)
        gone = gone[gone < len(self.mask) * 32]
        bits = np.left_shift(np.uint32(1), (gone % 32).astype(np.uint32))
        mask = self.mask.copy()
        removed = int(np.count_nonzero(mask[gone // 32] & bits))
        np.bitwise_and.at(mask, gone // 32, ~bits)
        left = None if self.token_ids is None else np.setdiff1d(self.token_ids, gone, assume_unique=True)
        return AllowedTokens(mask, self.count - removed, left, self.only_end)


def read_row(mask: NDArray[np.uint32], end_token_ids: Sequence[int], sparse_limit: int) -> AllowedTokens:
    """Counts a mask row and lists its tokens when they are few. Cost: a pass over the words, bits only where set."""
    count = int(np.bitwise_count(mask).sum())
    if count > sparse_limit:
        return AllowedTokens(mask, count, None, only_end=False)
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    row, bit = np.nonzero(bits)
    token_ids = (words[row] * 32 + bit).astype(np.int64)
    only_end = 0 < count <= len(end_token_ids) and set(token_ids.tolist()) <= set(end_token_ids)
    return AllowedTokens(mask, count, token_ids, only_end)


def unpack(rows: Sequence[AllowedTokens], tokens: int, device: torch.device) -> Tensor:
    """The rows as bool [n, tokens] on `device`, which they go to packed; tokens past their width are forbidden."""
    packed = np.stack([row.mask for row in rows])
    if device.type == "cpu":  # numpy is faster than shifts
        bits = np.unpackbits(packed.view(np.uint8), axis=1, count=tokens, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    return unpacked(torch.from_numpy(packed.view(np.int32)).to(device), tokens)
