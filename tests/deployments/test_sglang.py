"""What our backend for SGLang does without SGLang. With its real modules: `tests/sglang` (`make test-sglang`)."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from deployments.sglang.masks import apply_vocab_mask, forbid, set_token_filter
from deployments.sglang.ranks import NumberedExecutor, Ranks
from deployments.sglang.tags import read_tag


def test_masks_forbid_by_bits() -> None:
    rng = np.random.default_rng(1)
    for tokens in (1, 7, 8, 9, 31, 32, 33, 100):
        bits = rng.integers(0, 2, (4, 128)).astype(bool)
        mask = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
        for apply in (forbid, apply_vocab_mask):
            logits = torch.ones((4, tokens), dtype=torch.bfloat16)
            apply(logits, mask)
            assert (logits.isfinite().numpy() == bits[:, :tokens]).all()


def test_no_tensor_of_rows_by_vocabulary_is_made() -> None:
    logits, mask = torch.zeros((64, 32_000)), torch.full((64, 1000), 0x5A5A5A5A, dtype=torch.int32)
    forbid(logits, mask)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        forbid(logits, mask)
    assert max(event.self_cpu_memory_usage for event in profile.events()) <= logits.numel() // 8 + 4096


def test_single_tokens_are_filtered() -> None:
    for tokens in ([0, 31, 32, 63, 64, 64], [], [5]):
        for is_allowed in (True, False):
            for reset in (True, False):
                mask = torch.full((3, 3), 0x0F0F0F0F, dtype=torch.int32)
                before = np.unpackbits(mask[1].numpy().view(np.uint8), bitorder="little").astype(bool)
                wanted = np.full(96, not is_allowed) if reset else before
                wanted[tokens] = is_allowed
                set_token_filter(mask, tokens, 1, is_allowed, reset_vocab_mask=reset)
                assert (np.unpackbits(mask[1].numpy().view(np.uint8), bitorder="little") == wanted).all()
                assert (mask[[0, 2]] == 0x0F0F0F0F).all()


def both(decide: Any) -> tuple[Ranks, Ranks, NumberedExecutor, NumberedExecutor]:
    store = HashStore()
    leader, follower = Ranks(store, True, 1), Ranks(store, False, 1)
    return leader, follower, NumberedExecutor(leader), NumberedExecutor(follower)


@pytest.mark.parametrize("size", [0, 5, (4 << 20) + 1, 9 << 20])
def test_the_first_rank_decides_for_all(size: int) -> None:
    leader, follower, first, second = both(None)

    def never() -> bytes:
        raise AssertionError("the other ranks do not decide")

    for call in range(3):
        # The order in which threads get there does not matter, the order of the calls does.
        read = second.submit(follower.agree, never)
        decided = first.submit(leader.agree, lambda call=call: bytes([call]) * size)
        assert decided.result(60) == read.result(60) == bytes([call]) * size
    assert leader._store.num_keys() == 0, "what all have read is deleted"
    first.shutdown()
    second.shutdown()


def test_an_error_in_the_first_rank_is_no_wait_for_the_others() -> None:
    leader, follower, first, second = both(None)

    def fails() -> bytes:
        raise MemoryError

    decided, read = first.submit(leader.agree, fails), second.submit(follower.agree, fails)
    assert isinstance(decided.exception(60), MemoryError) and read.result(60) == b""
    first.shutdown()
    second.shutdown()


def test_a_call_that_the_first_rank_never_begins_is_no_wait_for_ever() -> None:
    leader, follower, first, second = both(None)
    gate: Future[None] = Future()
    blocked = [first.submit(gate.result) for _ in range(first._max_workers)]
    for _ in blocked:
        second.submit(lambda: None)
    canceled = first.submit(leader.agree, lambda: b"decision")
    assert canceled.cancel()
    assert second.submit(follower.agree, lambda: b"never").result(60) == b""
    gate.set_result(None)
    first.shutdown()
    second.shutdown()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"structures": [{"begin": "a", "end": "b"}]}, {"structures": [{"begin": "a", "schema": {}, "end": "b"}]}),
        (
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": None}},
            {"format": {"type": "json_schema", "json_schema": {}}},
        ),
        (
            {"format": {"type": "or", "elements": [{"type": "tag", "content": {"type": "qwen_xml_parameter"}}]}},
            {
                "format": {
                    "type": "or",
                    "elements": [{"type": "tag", "content": {"type": "qwen_xml_parameter", "json_schema": {}}}],
                }
            },
        ),
        # A schema's own property is no format.
        (
            {"format": {"type": "json_schema", "json_schema": {"const": {"type": "json_schema", "json_schema": None}}}},
            {"format": {"type": "json_schema", "json_schema": {"const": {"type": "json_schema", "json_schema": None}}}},
        ),
    ],
)
def test_what_sglang_leaves_out_of_tags(given: dict[str, Any], read: dict[str, Any]) -> None:
    assert json.loads(read_tag(json.dumps(given))) == {"type": "structural_tag", **read}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000])
def test_malformed_tags_are_left_to_the_compiler(text: str) -> None:
    assert read_tag(text) == text
