"""Resampling and estimates: against what they are defined by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_workers.sampling.particle_weights import (
    draw_particle,
    effective_sample_size,
    falls_below,
    log_mean_weight,
    resample,
)

NUMBERS = st.floats(0, 1, exclude_max=True)
LOGS = st.one_of(st.just(-np.inf), st.floats(-1e6, 1e6), st.floats(-3, 3))
WEIGHTS = st.lists(LOGS, min_size=1, max_size=70).filter(lambda logs: max(logs) > -np.inf).map(np.array)


@settings(max_examples=300)
@given(WEIGHTS, NUMBERS)
def test_copies_are_as_many_as_weights_say(log_weights: np.ndarray, uniform: float) -> None:
    """N w, rounded up or down; nobody without weight; who survives stays where it was."""
    ancestors = resample(log_weights, uniform)
    many = len(log_weights)
    shares = np.exp(log_weights - log_weights.max())
    shares /= shares.sum()
    copies = np.bincount(ancestors, minlength=many)
    assert copies.sum() == many
    assert (copies >= np.floor(many * shares - 1e-6)).all() and (copies <= np.ceil(many * shares + 1e-6)).all()
    assert not copies[np.isneginf(log_weights)].any()
    assert (ancestors[copies > 0] == np.flatnonzero(copies > 0)).all()


@settings(max_examples=300)
@given(WEIGHTS, NUMBERS)
def test_an_answer_has_weight(log_weights: np.ndarray, uniform: float) -> None:
    assert log_weights[draw_particle(log_weights, uniform)] > -np.inf


@settings(max_examples=200)
@given(WEIGHTS)
def test_sample_sizes_are_between_one_and_all(log_weights: np.ndarray) -> None:
    size = effective_sample_size(log_weights)
    assert 1 - 1e-9 <= size <= (~np.isneginf(log_weights)).sum() + 1e-9
    assert effective_sample_size(log_weights + 7) == pytest.approx(size)
    assert not falls_below(log_weights, 0)


def test_each_particle_is_copied_and_drawn_by_its_weight() -> None:
    log_weights = np.log(np.array([0.05, 0.6, 0.0, 0.35]) + 1e-300)
    numbers = (np.arange(4000) + 0.5) / 4000
    copies = sum(np.bincount(resample(log_weights, u), minlength=4) for u in numbers) / 4000
    assert copies == pytest.approx([0.2, 2.4, 0, 1.4], abs=1e-3)
    drawn = np.bincount([draw_particle(log_weights, u) for u in numbers], minlength=4) / 4000
    assert drawn == pytest.approx([0.05, 0.6, 0, 0.35], abs=1e-3)


def test_known_sizes_and_means() -> None:
    assert effective_sample_size(np.log([1.0, 1.0, 1.0])) == pytest.approx(3)
    assert effective_sample_size(np.log([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_sample_size(np.full(3, -np.inf)) == 0
    assert log_mean_weight(np.log([3.0, 1.0])) == pytest.approx(np.log(2))
    assert log_mean_weight(np.array([-2000.0, -np.inf])) == pytest.approx(-2000 - np.log(2))
    assert log_mean_weight(np.full(3, -np.inf)) == -np.inf
    # Half of the particles have all the weight: not below a half, however the weights are rounded.
    for rounding in (-1e-7, 0.0, 1e-7):
        assert not falls_below(np.array([0.0, rounding, -900, -900]), 0.5)
    assert falls_below(np.array([0.0, -900, -900, -900]), 0.5)
