"""The tokens that one mask allows: a token bitmask, their number, and a list of them if they are few."""

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
    """The mask of one grammar state: the tokens that the grammar allows next.

    Attributes:
        mask: Token bitmask, uint32 [ceil(V / 32)]: bit t % 32 of word t // 32 is set if token t is allowed.
        count: Number of allowed tokens.
        token_ids: Allowed tokens, int64 [count], ascending; None if there are more than the engine's `sparse_limit`.
        only_end: True if at least one token is allowed, and all allowed tokens are end tokens.
    """

    mask: NDArray[np.uint32]
    count: int
    token_ids: NDArray[np.int64] | None
    only_end: bool

    def without(self, token_ids: Collection[int]) -> AllowedTokens:
        """Return a copy of the mask in which some more tokens are disallowed. `only_end` is copied unchanged.

        Args:
            token_ids: Tokens to disallow. IDs beyond the width of the mask are ignored.

        Returns:
            The copy. It may allow no token at all.
        """
        gone = np.array(sorted(token_ids), dtype=np.int64)
        gone = gone[gone < len(self.mask) * 32]
        bits = np.left_shift(np.uint32(1), (gone % 32).astype(np.uint32))
        mask = self.mask.copy()
        removed = int(np.count_nonzero(mask[gone // 32] & bits))
        np.bitwise_and.at(mask, gone // 32, ~bits)
        left = None if self.token_ids is None else np.setdiff1d(self.token_ids, gone, assume_unique=True)
        return AllowedTokens(mask, self.count - removed, left, self.only_end)


def read_row(mask: NDArray[np.uint32], end_token_ids: Sequence[int], sparse_limit: int) -> AllowedTokens:
    """Return the allowed tokens of a token bitmask: their number, and a list of them if they are few.

    Args:
        mask: Token bitmask, uint32 [ceil(V / 32)]: bit t % 32 of word t // 32 is set if token t is allowed.
        end_token_ids: End tokens of the model.
        sparse_limit: Maximum number of tokens that are listed.

    Returns:
        The allowed tokens. With more than `sparse_limit` of them, `only_end` is false.
    """
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
    """Unpack masks to booleans on a device. The masks are copied there in packed form.

    Args:
        rows: The masks of n sequences, all of the same width; at least one.
        tokens: Number of tokens. Those beyond the width of a mask are disallowed.
        device: Device of the returned tensor.

    Returns:
        True for allowed tokens, bool [n, tokens].
    """
    packed = np.stack([row.mask for row in rows])
    if device.type == "cpu":  # numpy is faster than shifts
        bits = np.unpackbits(packed.view(np.uint8), axis=1, count=tokens, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    return unpacked(torch.from_numpy(packed.view(np.int32)).to(device), tokens)
