"""The KV cache: one fixed place per running sequence, and the table of which places are free."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor


class KVPool:
    """Keys and values of every slot.

    Per layer two tensors `[slots + 1, kv_heads, length, head_dim]`; the last slot is a dummy that no sequence owns:
    padding and load-time checks write there. Head-major, so what one head reads of a slot lies in one piece.

    Nothing in the pool may be NaN: attention weighs positions beyond a sequence's length with 0, and 0 x NaN would
    still be NaN. So memory starts at zero, and a slot whose values overflowed is wiped when it is released.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        length: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (slots + 1, kv_heads, length, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.position_nbytes = 2 * kv_heads * head_dim * dtype.itemsize
        """Bytes that attention of one layer reads for one position of a sequence."""
        self._stored = [*self.keys, *self.values]
        """All that a slot holds, [slots + 1, heads, length, width] each."""
        self.slots = slots
        self.length = length
        self.device = device
        self.dummy_slot = slots
        self._free = set(range(slots))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._stored)

    def keep_features(self, width: int) -> Tensor:
        """Room for more that a model says of each token, [slots + 1, length, width]: copied and wiped with its keys."""
        features = self.keys[0].new_zeros(self.slots + 1, 1, self.length, width)
        self._stored.append(features)
        return features[:, 0]

    def acquire(self, avoid: Container[int] = ()) -> int | None:
        """The lowest free slot that is not in `avoid` (low slots keep a decode batch contiguous), or None."""
        slot = min((slot for slot in self._free if slot not in avoid), default=None)
        if slot is not None:
            self._free.remove(slot)
        return slot

    def take(self, slot: int) -> None:
        """Takes this free slot, with what is in it."""
        self._free.remove(slot)

    def release(self, slot: int, length: int) -> None:
        """Gives `slot` back and wipes its first `length` positions."""
        assert 0 <= slot < self.slots and slot not in self._free
        self.clear(slot, length)
        self._free.add(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of one slot to another."""
        for tensor in self._stored:
            tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self, slot: int, length: int) -> None:
        for tensor in self._stored:
            tensor[slot, :, :length].zero_()

    def write(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values `[T, kv_heads, head_dim]` at `positions` of `slots`, both int64 [T]."""
        self.keys[layer][slots, :, positions] = keys
        self.values[layer][slots, :, positions] = values
