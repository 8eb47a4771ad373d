"""Philox against the published known answers, and uniforms as a function of nothing but their place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_workers.sampling.randomness import device_uniforms, philox, uniforms

# Random123's kat_vectors for philox4x32-10: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16) for word in text.split()]], np.uint64)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_known_answers(counter: str, key: str, result: str) -> None:
    assert np.array_equal(philox(words(counter), words(key)), words(result))


@given(st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 100), st.integers(0, 2**20)), min_size=1))
def test_a_uniform_does_not_depend_on_its_neighbours(places: list[tuple[int, int, int]]) -> None:
    together = uniforms(*map(list, zip(*places, strict=True)))
    alone = [uniforms([seed], [choice], [position])[0] for seed, choice, position in places]
    assert together.tolist() == alone
    assert np.all((together >= 0) & (together < 1))


def test_uniforms_are_uniform() -> None:
    many = 20_000
    for seeds, choices, positions in (
        (range(many), [0] * many, [0] * many),
        ([7] * many, range(many), [0] * many),
        ([7] * many, [0] * many, range(many)),
    ):
        sample = uniforms(list(seeds), list(choices), list(positions))
        # Kolmogorov-Smirnov: the largest distance exceeds 1.95 / sqrt(n) once in a thousand times.
        distance = np.abs(np.sort(sample) - (np.arange(many) + 0.5) / many).max()
        assert distance < 1.95 / np.sqrt(many)
        assert len(set(sample.tolist())) == many


def test_the_device_draws_the_same_numbers() -> None:
    rng = np.random.default_rng(3)
    seeds, choices, positions = (rng.integers(0, high, 200) for high in (2**63, 2**10, 2**31))
    expected = uniforms(seeds.tolist(), choices.tolist(), positions.tolist())
    seed, choice, position = map(torch.from_numpy, (seeds, choices, positions))
    actual = device_uniforms(seed & 0xFFFFFFFF, seed >> 32, position, choice)
    assert actual.tolist() == expected.tolist()
