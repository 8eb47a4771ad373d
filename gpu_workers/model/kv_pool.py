"""The KV cache: one slot of fixed size per running sequence, and the set of free slots."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor


class KVPool:
    """The KV cache: keys and values of all sequences, in slots of equal size.

    Each layer has a tensor of keys and one of values, each [slots + 1, kv_heads, length, head_dim]. The last slot is a
    dummy without an owner: padding and the checks at load time write to it. The head axis comes before the position
    axis, so the data that one head reads from a slot is contiguous.

    No value in the cache may be NaN. Attention gives the weight 0 to positions beyond the length of a sequence, but 0 *
    NaN is NaN. So the memory is zero at the start. When a slot is released, the positions that its sequence wrote are
    set to zero, unless they are kept for prefix caching.

    Args:
        layers: Number of layers.
        slots: Number of slots, without the dummy.
        length: Number of positions (tokens) per slot.
        kv_heads: Number of key and value heads.
        head_dim: Size of a head.
        dtype: Type of keys and values.
        device: Device of the tensors.

    Attributes:
        keys: Keys of each layer.
        values: Values of each layer.
        position_nbytes: Bytes that the attention of one layer reads for one position of a sequence.
        dummy_slot: Index of the dummy slot.
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
        # Bytes that the attention of one layer reads for one position of a sequence.
        self.position_nbytes = 2 * kv_heads * head_dim * dtype.itemsize
        # All tensors that a slot consists of, each [slots + 1, heads, length, width].
        self._stored = [*self.keys, *self.values]
        self.slots = slots
        self.length = length
        self.device = device
        self.dummy_slot = slots
        self._free = set(range(slots))

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """Size of all tensors of the cache, in bytes."""
        return sum(tensor.nbytes for tensor in self._stored)

    def keep_features(self, width: int) -> Tensor:
        """Allocate a tensor for features: one vector per position of each slot, which an EAGLE-3 head reads.

        `copy`, `clear` and `release` treat the features of a slot like its keys and values.

        Args:
            width: Size of each vector.

        Returns:
            The vectors, [slots + 1, length, width], of the type of the keys; zero at first.
        """
        features = self.keys[0].new_zeros(self.slots + 1, 1, self.length, width)
        self._stored.append(features)
        return features[:, 0]

    def acquire(self, avoid: Container[int] = ()) -> int | None:
        """Take the lowest free slot that is not in `avoid`.

        With low slots, the slots of a decode batch are often adjacent.

        Args:
            avoid: Slots to leave free.

        Returns:
            Index of the slot; None if there is none.
        """
        slot = min((slot for slot in self._free if slot not in avoid), default=None)
        if slot is not None:
            self._free.remove(slot)
        return slot

    def take(self, slot: int) -> None:
        """Take a given slot out of the set of free slots. The content of the slot is kept.

        Args:
            slot: Index of the slot, which must be free.
        """
        self._free.remove(slot)

    def release(self, slot: int, length: int) -> None:
        """Return a slot to the set of free slots, and set its first positions to zero.

        Args:
            slot: Index of the slot, which must not be free.
            length: Number of positions to set to zero; 0 keeps the content.
        """
        assert 0 <= slot < self.slots and slot not in self._free
        self.clear(slot, length)
        self._free.add(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first positions of a slot to another slot, in all tensors of the cache.

        Args:
            source: Index of the slot to read.
            target: Index of the slot to write.
            length: Number of positions to copy.
        """
        for tensor in self._stored:
            tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self, slot: int, length: int) -> None:
        """Set the first positions of a slot to zero, in all tensors of the cache.

        Args:
            slot: Index of the slot.
            length: Number of positions to clear.
        """
        for tensor in self._stored:
            tensor[slot, :, :length].zero_()

    def write(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values of tokens in one layer.

        Args:
            layer: Index of the layer.
            slots: Slot of each token, int64 [T].
            positions: Position of each token in its slot, int64 [T].
            keys: Keys, [T, kv_heads, head_dim].
            values: Values, [T, kv_heads, head_dim].
        """
        self.keys[layer][slots, :, positions] = keys
        self.values[layer][slots, :, positions] = values
