"""Attention over the KV cache, registered with transformers' public `AttentionInterface`.

The tokens of all sequences in a step (forward pass of the batch) are concatenated to one input `[1, T]`. First comes
the decode group: sequences with a few tokens each, which attend together. Then come the prompt chunks.

`slot_attention` replaces the attention function of every layer. It writes the keys and values of the step into the
cache, then computes attention for the decode group and for each chunk. transformers creates no mask for a registered
function, and passes the keyword argument `attention_plan` through unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

from gpu_workers.model.kv_pool import KVPool
from gpu_workers.transfers import to_device

IMPLEMENTATION = "turnstile_slots"
_KV_BUCKET = 64
# Bytes that a CPU core reads in 15 µs, which is the overhead of one more attention call.
_CALL_NBYTES = 1 << 19


class CausalMask:
    """Causal attention masks, for queries whose positions are known on the host.

    Args:
        positions: Position of each query in its sequence, int64 [..., queries].
        kv_length: Number of keys, from position 0, that the attention call reads.
        device: Device of the masks.
    """

    def __init__(self, positions: NDArray[np.int64], kv_length: int, device: torch.device) -> None:
        self._positions = positions[..., None]
        self._keys = np.arange(kv_length)
        self._device = device
        self._made: dict[int | None, Tensor | None] = {}

    def within(self, window: int | None) -> Tensor | None:
        """Return the causal mask for one size of the sliding window.

        Each size is computed once, and then shared by all layers.

        Args:
            window: Size of the sliding window: a query attends to this many keys, its own key included. None: no
                window.

        Returns:
            True where a query attends to a key, bool [..., queries, kv_length]; None if every query attends to every
            key.
        """
        if window is not None and window > self._positions.max():
            window = None
        if window not in self._made:
            allowed = self._keys <= self._positions
            if window is not None:
                allowed &= self._keys > self._positions - window
            self._made[window] = None if allowed.all() else to_device(allowed, self._device)
        return self._made[window]


@dataclass(frozen=True, slots=True)
class DeviceMask:
    """Causal attention masks, for queries whose positions are on the device and must not be read by the host.

    Attributes:
        positions: Position of each query in its sequence, int64 [..., queries].
        kv_length: Number of keys, from position 0, that the attention call reads.
    """

    positions: Tensor
    kv_length: int

    def within(self, window: int | None) -> Tensor:
        """Return the causal mask for one size of the sliding window.

        Args:
            window: Size of the sliding window: a query attends to this many keys, its own key included. None: no
                window.

        Returns:
            True where a query attends to a key, bool [..., queries, kv_length].
        """
        keys, positions = torch.arange(self.kv_length, device=self.positions.device), self.positions[..., None]
        allowed = keys <= positions
        return allowed if window is None else allowed & (keys > positions - window)


@dataclass(frozen=True, slots=True)
class CacheRead:
    """One attention call: its sequences, and the slots of the KV cache from which they read.

    Attributes:
        rows: Slice that selects the sequences of the call from their group.
        slots: Slot of each sequence: a slice (a view of the cache) or int64 [rows] (a copy).
        kv_length: Number of positions, from 0, that are read from each slot.
        mask: Causal mask whose query positions have the shape [rows, 1, queries].
    """

    rows: slice
    slots: slice | Tensor
    kv_length: int
    mask: CausalMask | DeviceMask


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with a few tokens each, which attend together. Their tokens are the first `tokens` tokens of the step.

    For attention only, each sequence is padded to `queries` tokens. For example, two sequences with 1 and 2 tokens have
    the `padded` indices [0, 0, 1, 2] and the `real` indices [0, 2, 3].

    Attributes:
        rows: Number of sequences.
        queries: Number of tokens of each sequence after padding.
        tokens: Total number of tokens without padding.
        reads: Attention calls that together cover all sequences.
        padded: Index of the token at each padded position, int64 [rows * queries]. Padding repeats the last token of
            its sequence. None if nothing is padded.
        real: Padded position of each token, int64 [tokens]; None if nothing is padded.
    """

    rows: int
    queries: int
    tokens: int
    reads: tuple[CacheRead, ...]
    padded: Tensor | None = None
    real: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """One prompt chunk, whose tokens attend alone, as one sequence.

    Attributes:
        start: Index of the first token of the chunk among the tokens of the step.
        stop: One past the index of the last token.
        read: Attention call of the chunk.
    """

    start: int
    stop: int
    read: CacheRead


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All cache reads and writes of one step (forward pass of the batch). The plan is valid for every layer.

    Attributes:
        pool: The KV cache.
        slots: Slot to which the key and value of each token are written, int64 [T].
        positions: Position of each token in its slot, int64 [T].
        decode: Sequences with a few tokens each, which attend together; None if there are none.
        segments: Prompt chunks, each of which attends alone.
    """

    pool: KVPool
    slots: Tensor
    positions: Tensor
    decode: DecodeGroup | None
    segments: tuple[Segment, ...]


def decode_group(pool: KVPool, slots: list[int], lengths: list[int], counts: list[int]) -> DecodeGroup:
    """Plan the attention of sequences with a few tokens each, which attend together in a step.

    Args:
        pool: The KV cache.
        slots: Slot of each sequence, ascending; at least one.
        lengths: Number of tokens of each sequence that are already in the cache.
        counts: Number of new tokens of each sequence, at least 1.

    Returns:
        The group, with its attention calls. On a CPU, sequences are split into several calls where this is faster.
    """
    rows, queries, tokens = len(slots), max(counts), sum(counts)
    past, fed = np.array(lengths)[:, None], np.array(counts)[:, None]
    # A padded query attends to the same keys as the last token of its sequence.
    query = np.minimum(np.arange(queries), fed - 1)
    ends = [length + count for length, count in zip(lengths, counts, strict=True)]
    reads = tuple(
        _cache_read(pool, part, slots[part], (past[part] + query[part])[:, None], max(ends[part]))
        for part in _read_together(pool, slots, ends)
    )
    if tokens == rows * queries:
        return DecodeGroup(rows, queries, tokens, reads)
    padded = to_device((np.cumsum(fed)[:, None] - fed + query).ravel(), pool.device)
    real = to_device(np.flatnonzero(np.arange(queries) < fed), pool.device)
    return DecodeGroup(rows, queries, tokens, reads, padded, real)


def static_plan(pool: KVPool, slot: Tensor, position: Tensor, read: Tensor, kv_length: int) -> AttentionPlan:
    """Plan the attention of a step that is captured in a graph, without reading a tensor on the host.

    The plan depends on the shapes of the tensors and on `kv_length`, but not on the values of the tensors.

    Args:
        pool: The KV cache.
        slot: Slot to which each key and value is written, int64 [rows, queries].
        position: Position of each token, int64 [rows, queries]; a query attends to the keys up to this position.
        read: Slot from which each sequence reads, int64 [rows].
        kv_length: Number of positions, from 0, that are read from each slot.

    Returns:
        A plan with one decode group and no prompt chunks.
    """
    rows, queries = position.shape
    reads = (CacheRead(slice(0, rows), read, kv_length, DeviceMask(position[:, None], kv_length)),)
    group = DecodeGroup(rows, queries, rows * queries, reads)
    return AttentionPlan(pool, slot.flatten(), position.flatten(), group, ())


def segment(pool: KVPool, start: int, tokens: int, slot: int, past: int) -> Segment:
    """Plan the attention of a prompt chunk.

    Args:
        pool: The KV cache.
        start: Index of the first token of the chunk among the tokens of the step.
        tokens: Number of tokens of the chunk.
        slot: Slot of the sequence.
        past: Number of tokens of the sequence that are already in the slot.

    Returns:
        The chunk, with its attention call.
    """
    positions = np.arange(past, past + tokens)[None, None]
    return Segment(start, start + tokens, _cache_read(pool, slice(0, 1), [slot], positions, past + tokens))


def _cache_read(pool: KVPool, rows: slice, slots: list[int], positions: NDArray[np.int64], kv_length: int) -> CacheRead:
    if len(slots) > 1:  # one row alone needs no mask
        kv_length = min(-(-kv_length // _KV_BUCKET) * _KV_BUCKET, pool.length)
    adjacent = slots[-1] - slots[0] == len(slots) - 1
    where = slice(slots[0], slots[-1] + 1) if adjacent else to_device(torch.tensor(slots), pool.device)
    return CacheRead(rows, where, kv_length, CausalMask(positions, kv_length, pool.device))


def _read_together(pool: KVPool, slots: list[int], ends: list[int]) -> list[slice]:
    """Return ranges of sequences, each for one attention call.

    A call pads every sequence to the length of the longest one, and copies the slots first if they are not adjacent. On
    a CPU, both can cost more than a further call. So a range ends where slots are not adjacent, and where reading the
    padding that the next sequence would add takes longer than a call. On other devices all sequences are one range.
    """
    if pool.device.type != "cpu":
        return [slice(0, len(slots))]
    spare = _CALL_NBYTES // pool.position_nbytes
    ranges = []
    start, longest, padding = 0, ends[0], 0
    for row in range(1, len(slots)):
        grown = max(longest, ends[row])
        more = padding + (grown - longest) * (row - start) + grown - ends[row]
        if slots[row] != slots[row - 1] + 1 or more > spare:
            ranges.append(slice(start, row))
            start, grown, more = row, ends[row], 0
        longest, padding = grown, more
    return [*ranges, slice(start, len(slots))]


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    attention_plan: AttentionPlan,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Write the keys and values of one layer into the KV cache, then compute attention over the cache.

    transformers calls this function in every layer. Layers with a sliding window or soft-capped scores pass
    `sliding_window` and `softcap`. The cache keeps all keys even with a window, so prefix caching stays possible.

    Args:
        module: Attention module of the layer; its `layer_idx` selects the keys and values.
        query: Queries, [1, heads, T, head_dim].
        key: Keys, [1, kv_heads, T, head_dim].
        value: Values, [1, kv_heads, T, head_dim].
        attention_mask: Not used.
        scaling: Factor of the scores; None: 1 / sqrt(head_dim).
        dropout: Not used.
        attention_plan: Cache reads and writes of the step.
        sliding_window: Number of keys to which a query attends, its own key included; None: all.
        softcap: Bound of the absolute value of scores; None: no bound.
        **kwargs: Not used.

    Returns:
        Attention output, [1, T, heads, head_dim], and None in place of attention weights.
    """
    plan, layer = attention_plan, int(module.layer_idx)  # type: ignore[arg-type]
    plan.pool.write(layer, plan.slots, plan.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys, values = plan.pool.keys[layer], plan.pool.values[layer]

    def attend(rows: Tensor, reads: tuple[CacheRead, ...]) -> Tensor:
        return _attend(rows, keys, values, reads, sliding_window, scaling, softcap)

    tokens = query[0].transpose(0, 1)  # [T, heads, head_dim]
    if (group := plan.decode) is not None:
        rows = tokens[: group.tokens] if group.padded is None else tokens[group.padded]
        attended = attend(rows.unflatten(0, (group.rows, group.queries)), group.reads).flatten(0, 1)
        if group.real is not None:
            attended = attended[group.real]
        if not plan.segments:
            return attended[None], None
    output = torch.empty_like(tokens)
    if group is not None:
        output[: group.tokens] = attended
    for part in plan.segments:
        output[part.start : part.stop] = attend(tokens[None, part.start : part.stop], (part.read,))[0]
    return output[None], None


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    reads: tuple[CacheRead, ...],
    sliding_window: int | None,
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    """Return the attention [B, Q, heads, D] of queries [B, Q, heads, D] over the keys and values of a layer.

    `reads` covers the B sequences in order. Query heads that share a key head are stacked along the query axis, so the
    cache is never repeated in memory.
    """
    rows, queries, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    stacked = query.view(rows, queries, kv_heads, shared, head_dim).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(rows, kv_heads, shared * queries, head_dim)
    parts = []
    for read in reads:
        mask = read.mask.within(sliding_window)
        if mask is not None and queries > 1 and shared > 1:
            mask = mask.repeat(1, 1, shared, 1)
        part, k, v = stacked[read.rows], keys[read.slots, :, : read.kv_length], values[read.slots, :, : read.kv_length]
        if softcap is None:
            parts.append(F.scaled_dot_product_attention(part, k, v, attn_mask=mask, scale=scaling))
        else:
            parts.append(_capped_attention(part, k, v, mask, scaling or head_dim**-0.5, softcap))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output.view(rows, kv_heads, shared, queries, head_dim).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _capped_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float
) -> Tensor:
    """Attention with scores bounded to +-softcap (Gemma 2, arXiv:2408.00118). [B, kv_heads, Q, D] -> the same shape."""
    scores = (query @ keys.transpose(2, 3)) * (scaling / softcap)
    scores = scores.tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    wide = torch.float32 if scores.dtype in (torch.bfloat16, torch.float16) else scores.dtype
    return scores.softmax(-1, dtype=wide).to(query.dtype) @ values


AttentionInterface.register(IMPLEMENTATION, slot_attention)
