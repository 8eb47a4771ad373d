"""The attention function alone, against plain causal attention over whole sequences."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpu_workers.model.attention import AttentionPlan, decode_group, segment, slot_attention
from gpu_workers.model.kv_pool import KVPool

HEADS, KV_HEADS, HEAD_DIM, LENGTH = 4, 2, 8, 100


def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[T, heads, D] of one sequence: causal, key heads repeated."""
    shared = HEADS // KV_HEADS
    heads = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
    key, value = (tensor.repeat_interleave(shared, 1) for tensor in heads[1:])
    return F.scaled_dot_product_attention(heads[0], key, value, is_causal=True)[0].transpose(0, 1)


@pytest.mark.parametrize("queries", [[1, 1, 1], [3, 3, 3], [1, 4, 2]])
@pytest.mark.parametrize("slots", [[0, 1, 2], [1, 3, 4]])
@pytest.mark.parametrize("call_nbytes", [0, 1 << 19])
def test_decode_rows_and_segments_equal_whole_sequences(
    queries: list[int], slots: list[int], call_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows decode a few tokens each while two prompts are computed in chunks, in one step."""
    monkeypatch.setattr("gpu_workers.model.attention._CALL_NBYTES", call_nbytes)
    torch.manual_seed(0)
    pool = KVPool(
        layers=1,
        slots=8,
        length=LENGTH,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    past = {slots[0]: 5, slots[1]: 70, slots[2]: 0, 6: 20, 7: 0}
    new = dict(zip(slots, queries, strict=True)) | {6: 9, 7: 4}
    sequences = {}
    for slot, before in past.items():
        tokens = before + new[slot]
        q = torch.randn(tokens, HEADS, HEAD_DIM, dtype=torch.float64)
        k, v = (torch.randn(tokens, KV_HEADS, HEAD_DIM, dtype=torch.float64) for _ in "kv")
        sequences[slot] = (q, k, v)
        pool.keys[0][slot, :, :before] = k[:before].transpose(0, 1)
        pool.values[0][slot, :, :before] = v[:before].transpose(0, 1)
    flat = [tuple(tensor[past[slot] :] for tensor in sequences[slot]) for slot in past]
    query, key, value = (torch.cat([part[i] for part in flat]).transpose(0, 1)[None] for i in range(3))
    positions = torch.cat([torch.arange(past[slot], past[slot] + new[slot]) for slot in past])
    start = sum(queries)
    plan = AttentionPlan(
        pool,
        torch.tensor([slot for slot in past for _ in range(new[slot])]),
        positions,
        decode_group(pool, slots, [past[slot] for slot in slots], queries),
        (segment(pool, start, 9, 6, 20), segment(pool, start + 9, 4, 7, 0)),
    )
    module = SimpleNamespace(layer_idx=0)
    output, _ = slot_attention(module, query, key, value, None, None, attention_plan=plan)  # type: ignore[arg-type]
    expected = torch.cat([reference(*sequences[slot])[past[slot] :] for slot in past])
    torch.testing.assert_close(output[0], expected)
    for slot, (_, k, v) in sequences.items():
        assert torch.equal(pool.keys[0][slot, :, : len(k)], k.transpose(0, 1))
        assert torch.equal(pool.values[0][slot, :, : len(v)], v.transpose(0, 1))


@given(
    rows=st.dictionaries(st.integers(0, 40), st.integers(1, LENGTH), min_size=1),
    call_nbytes=st.sampled_from([0, 1 << 12, 1 << 16, 1 << 30]),
)
def test_rows_read_together_are_adjacent_and_of_similar_length(rows: dict[int, int], call_nbytes: int) -> None:
    slots, ends = sorted(rows), [rows[slot] for slot in sorted(rows)]
    pool = KVPool(
        layers=1, slots=41, length=LENGTH, kv_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_workers.model.attention._CALL_NBYTES", call_nbytes)
        group = decode_group(pool, slots, [end - 1 for end in ends], [1] * len(slots))
    assert [row for read in group.reads for row in range(len(slots))[read.rows]] == list(range(len(slots)))
    for read in group.reads:
        assert isinstance(read.slots, slice)
        assert list(range(41)[read.slots]) == slots[read.rows]
        longest = max(ends[read.rows])
        assert read.kv_length >= longest
        assert sum(longest - end for end in ends[read.rows]) * pool.position_nbytes <= call_nbytes
    if call_nbytes == 1 << 30:
        gaps = sum(after - before > 1 for before, after in itertools.pairwise(slots))
        assert len(group.reads) == 1 + gaps
