"""Attention over the KV pool, registered with transformers' public `AttentionInterface`.

A step is flat: its tokens lie one after another in `[1, T]`, first the decode group, then prompt chunks. The function
below replaces the attention of every layer: it writes the step's keys and values into the pool, then attends per group.
transformers builds no mask for an implementation it does not know, and hands `attention_plan` through unchanged.
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
_CALL_NBYTES = 1 << 19
"""What a CPU core reads while attention is called once more: 15 us."""


class CausalMask:
    """Where queries at `positions` (int64 [..., queries]) of their sequences may look among `kv_length` keys."""

    def __init__(self, positions: NDArray[np.int64], kv_length: int, device: torch.device) -> None:
        self._positions = positions[..., None]
        self._keys = np.arange(kv_length)
        self._device = device
        self._made: dict[int | None, Tensor | None] = {}

    def within(self, window: int | None) -> Tensor | None:
        """bool [..., queries, kv_length]; with a window a query sees that many keys, its own the last of them.

        None where every query sees every key. Made once a step for the layers that share it.
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
    """The same where the positions, int64 [..., queries], are on the device, and may not be looked at."""

    positions: Tensor
    kv_length: int

    def within(self, window: int | None) -> Tensor:
        """bool [..., queries, kv_length]."""
        keys, positions = torch.arange(self.kv_length, device=self.positions.device), self.positions[..., None]
        allowed = keys <= positions
        return allowed if window is None else allowed & (keys > positions - window)


@dataclass(frozen=True, slots=True)
class CacheRead:
    """Rows that attend in one call, and where their keys and values are: the first `kv_length` positions of `slots`.

    `slots` is a slice (a view of the pool) or int64 [rows] (a gather); `mask` is over [rows, 1, queries].
    """

    rows: slice
    slots: slice | Tensor
    kv_length: int
    mask: CausalMask | DeviceMask


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows that feed a few tokens each: the first `tokens` tokens of the step, row after row.

    Rows feeding fewer than `queries` tokens are padded for attention alone: `padded` int64 [rows * queries] names the
    token at each place, `real` int64 [tokens] the place of each token. Both are None when all rows feed equally many.
    """

    rows: int
    queries: int
    tokens: int
    reads: tuple[CacheRead, ...]
    padded: Tensor | None = None
    real: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """One prompt chunk: tokens `start:stop` of the step, one row of `stop - start` queries."""

    start: int
    stop: int
    read: CacheRead


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where one step reads and writes: each token's key and value go to `positions` of `slots`, both int64 [T]."""

    pool: KVPool
    slots: Tensor
    positions: Tensor
    decode: DecodeGroup | None
    segments: tuple[Segment, ...]


def decode_group(pool: KVPool, slots: list[int], lengths: list[int], counts: list[int]) -> DecodeGroup:
    """The group of rows in `slots` (ascending), `lengths` tokens already computed, feeding `counts` tokens each."""
    rows, queries, tokens = len(slots), max(counts), sum(counts)
    past, fed = np.array(lengths)[:, None], np.array(counts)[:, None]
    # A padded query looks where its row's last token looks.
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
    """The plan of a captured step, all of it on the device: nothing about it depends on what the tensors hold.

    `slot`, `position` int64 [rows, queries]: where keys and values go, and how far each query looks into the slots
    `read` int64 [rows], of which `kv_length` positions are read.
    """
    rows, queries = position.shape
    reads = (CacheRead(slice(0, rows), read, kv_length, DeviceMask(position[:, None], kv_length)),)
    group = DecodeGroup(rows, queries, rows * queries, reads)
    return AttentionPlan(pool, slot.flatten(), position.flatten(), group, ())


def segment(pool: KVPool, start: int, tokens: int, slot: int, past: int) -> Segment:
    """The chunk of `tokens` tokens at `start` of the step, after `past` tokens already in `slot`."""
    positions = np.arange(past, past + tokens)[None, None]
    return Segment(start, start + tokens, _cache_read(pool, slice(0, 1), [slot], positions, past + tokens))


def _cache_read(pool: KVPool, rows: slice, slots: list[int], positions: NDArray[np.int64], kv_length: int) -> CacheRead:
    if len(slots) > 1:  # one row alone needs no mask
        kv_length = min(-(-kv_length // _KV_BUCKET) * _KV_BUCKET, pool.length)
    adjacent = slots[-1] - slots[0] == len(slots) - 1
    where = slice(slots[0], slots[-1] + 1) if adjacent else to_device(torch.tensor(slots), pool.device)
    return CacheRead(rows, where, kv_length, CausalMask(positions, kv_length, pool.device))


def _read_together(pool: KVPool, slots: list[int], ends: list[int]) -> list[slice]:
    """Ranges of rows, each for one call of attention.

    A call reads the longest row's length for all its rows, and copies the slots first if they are not adjacent. On a
    CPU both cost more than another call: ranges end where slots are not adjacent, and where what the next row would
    add of padding takes longer to read than a call. Elsewhere all rows are one range.
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
    """query [1, heads, T, head_dim], key, value [1, kv_heads, T, head_dim] -> ([1, T, heads, head_dim], None).

    Layers with a sliding window or soft-capped scores hand these over; they keep all keys, so prefixes stay reusable.
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
    """query [B, Q, heads, D], keys and values of a layer, reads of B rows together. Returns [B, Q, heads, D].

    Query heads that share a key head are stacked along the query axis, so the cache is never repeated in memory.
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
    """Scores stay within +-softcap (Gemma 2, arXiv:2408.00118). [B, kv_heads, Q, D], keys and values [.., kv, D]."""
    scores = (query @ keys.transpose(2, 3)) * (scaling / softcap)
    scores = scores.tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    wide = torch.float32 if scores.dtype in (torch.bfloat16, torch.float16) else scores.dtype
    return scores.softmax(-1, dtype=wide).to(query.dtype) @ values


AttentionInterface.register(IMPLEMENTATION, slot_attention)
