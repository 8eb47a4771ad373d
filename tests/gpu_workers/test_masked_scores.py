"""Masks and temperature from packed rows, against what the sampler does on a CPU; the table of rows on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_workers.request import SamplingParameters
from gpu_workers.sampling import device_rows
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from gpu_workers.sampling.device_rows import DeviceRows
from gpu_workers.sampling.distribution import draw_settings, draw_weights, filtered
from gpu_workers.sampling.masked_scores import masked_scores, unpacked
from grammar_workers.matching.apply_masks import forbid_unmasked

CPU = torch.device("cpu")


def mask_row(rng: np.random.Generator, words: int) -> AllowedTokens:
    """Of every density, and never without a token."""
    bits = rng.random(words * 32) < rng.choice([0.01, 0.5, 0.99, 1.0])
    bits[rng.integers(min(words * 32, 20))] = True
    return read_row(np.packbits(bits, bitorder="little").view(np.uint32), [], 4)


@given(st.integers(0, 10**6), st.sampled_from([20, 32, 33, 1000]), st.sampled_from([torch.float32, torch.bfloat16]))
def test_scores_make_the_weights_of_a_cpu_bit_for_bit(seed: int, tokens: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    words = max(1, -(-tokens // 32) + int(rng.integers(-1, 2)))
    logits = torch.from_numpy(rng.normal(size=(5, tokens)) * rng.choice([1, 100])).to(dtype)
    masked = np.flatnonzero(rng.random(5) < 0.7).tolist()
    rows = [mask_row(rng, words) for _ in masked]
    sampling = [
        SamplingParameters(
            temperature=float(rng.choice([0.01, 0.7, 1, 5e-324])), min_p=float(rng.choice([0, 0.1])), top_k=tokens // 2
        )
        for _ in range(5)
    ]
    settings = draw_settings(sampling, CPU)
    expected = logits.float().clone()
    forbid_unmasked(expected.numpy(), [row.mask for row in rows], masked)
    on_device = DeviceRows(tokens, CPU)
    places = on_device.places(5, masked, rows) if masked else None
    scores = masked_scores(logits, on_device.table if masked else None, places, settings.temperature)
    assert torch.equal(scores.argmax(-1), expected.argmax(-1))
    assert torch.equal(filtered(scores.exp(), settings), draw_weights(expected, settings))


@given(st.integers(0, 10**6), st.integers(1, 200))
def test_bits_are_those_of_numpy(seed: int, tokens: int) -> None:
    words = np.random.default_rng(seed).integers(0, 2**32, (3, 4)).astype(np.uint32)
    expected = np.zeros((3, tokens), bool)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :tokens]
    expected[:, : bits.shape[1]] = bits
    assert np.array_equal(unpacked(torch.from_numpy(words.view(np.int32)), tokens).numpy(), expected)


@given(st.integers(0, 10**6))
def test_rows_are_where_they_are_said_to_be(seed: int) -> None:
    """Batches of new and known rows in a table that is too small for all; some are larger than the table was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_rows, "_TABLE_NBYTES", 6 * 3 * 4)
        check_places(np.random.default_rng(seed), DeviceRows(70, CPU))


def check_places(rng: np.random.Generator, table: DeviceRows) -> None:
    known = [mask_row(rng, int(rng.integers(1, 5))) for _ in range(12)]
    before: list[tuple[torch.Tensor, list[int], list[AllowedTokens]]] = []
    for _ in range(20):
        if rng.random() < 0.2:
            known[rng.integers(12)] = mask_row(rng, 3)  # others' identities are free to be taken again
        many = int(rng.integers(1, 12 if rng.random() < 0.1 else 5))
        lines = np.flatnonzero(rng.random(many) < 0.8).tolist()
        rows = [known[rng.integers(12)] for _ in lines]
        uploaded = table.uploaded
        places = table.places(many, lines, rows)
        assert table.uploaded - uploaded <= len({id(row) for row in rows})
        assert np.flatnonzero(places.numpy() >= 0).tolist() == lines
        before = [*before[-1:], (places, lines, rows)]
        for at, those, theirs in before:
            for line, row in zip(those, theirs, strict=True):
                words = np.zeros(3, np.uint32)
                words[: len(row.mask)] = row.mask[:3]
                assert table.table[at[line]].tolist() == words.view(np.int32).tolist()


def test_a_known_row_does_not_go_up_again() -> None:
    rng = np.random.default_rng(0)
    table, rows = DeviceRows(100, CPU), [mask_row(rng, 4) for _ in range(30)]
    for _ in range(3):
        table.places(32, range(30), rows)
    assert table.uploaded == 30
    assert table.table.nbytes <= device_rows._TABLE_NBYTES
