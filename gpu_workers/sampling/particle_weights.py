"""Sequential Monte Carlo over weighed particles, on the logarithms of their weights alone.

Lew et al. 2023 (arXiv:2306.03081) and Loula et al. 2025 (arXiv:2504.13139) steer language models so: particles are
extended by a token each, weighed, and, where few of them carry all the weight, replaced by copies of those.

Logarithms are float64 [N], `-inf` for a particle without any weight. Weights need not be normalised.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-3
"""Weights that ought to be equal differ by what the model rounds; a sample size by as much is not below a threshold."""


def effective_sample_size(log_weights: NDArray[np.float64]) -> float:
    """How many particles of equal weight would be worth as much (Kish): from 1 to N, 0 where none has any weight."""
    weights = _weights(log_weights)
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0


def falls_below(log_weights: NDArray[np.float64], share: float) -> bool:
    """Whether the effective sample size is less than this share of the particles."""
    return effective_sample_size(log_weights) < share * len(log_weights) * (1 - _ROUNDING)


def log_mean_weight(log_weights: NDArray[np.float64]) -> float:
    """The logarithm of the mean: exp of it is an unbiased estimate of the normalising constant."""
    largest = float(log_weights.max())
    return largest if np.isinf(largest) else largest + float(np.log(_weights(log_weights).mean()))


def resample(log_weights: NDArray[np.float64], uniform: float) -> NDArray[np.int64]:
    """Whose copy each place holds from here on, int64 [N]; `uniform` in [0, 1). Some particle must have weight.

    Systematic resampling (Kitagawa 1996): a particle with the share w of the weight is there N w times, rounded up or
    down. Who survives keeps its place, so that only copies move.
    """
    many = len(log_weights)
    cumulative = _weights(log_weights).cumsum()
    places = np.minimum((uniform + np.arange(many)) / many, np.nextafter(1.0, 0.0)) * cumulative[-1]
    copies = np.bincount(_pass(cumulative, places), minlength=many)
    ancestors = np.arange(many)
    ancestors[copies == 0] = np.repeat(np.arange(many), np.maximum(copies - 1, 0))
    return ancestors


def draw_particle(log_weights: NDArray[np.float64], uniform: float) -> int:
    """A particle, with a probability as its weight; `uniform` in [0, 1). Some particle must have weight."""
    cumulative = _weights(log_weights).cumsum()
    return int(_pass(cumulative, np.array([uniform * cumulative[-1]]))[0])


def _weights(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights, scaled so that the largest is 1; zeros where none has any."""
    largest = log_weights.max()
    return np.zeros_like(log_weights) if np.isneginf(largest) else np.exp(log_weights - largest)


def _pass(cumulative: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where sums of weights pass these places: never at a particle without weight."""
    below = np.minimum(places, np.nextafter(cumulative[-1], 0.0))
    return np.searchsorted(cumulative, below, side="right").astype(np.int64)
