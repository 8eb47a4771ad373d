"""Sequential Monte Carlo: functions on the weights of particles. Weights are passed as natural logarithms.

*Particles* are outputs of one request that are sampled in parallel. Each particle is extended by one token and
weighted. If few particles have most of the weight, particles with a small weight are replaced by copies of particles
with a large weight (*resampling*). References for language models: Lew et al. 2023 (arXiv:2306.03081) and Loula et al.
2025 (arXiv:2504.13139).

`log_weights` is float64 [N], `-inf` for a particle of weight 0. Weights need not be normalized.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Relative tolerance of thresholds on the sample size.
#
# Weights that should be equal differ by the rounding of the model.
_ROUNDING = 1e-3


def effective_sample_size(log_weights: NDArray[np.float64]) -> float:
    """Return the effective sample size: (sum of the weights)² / (sum of the squared weights).

    N equal weights give N. If one weight is much larger than the others, the effective sample size is close to 1.

    Args:
        log_weights: Natural logarithms of the weights of N particles (outputs sampled in parallel), float64 [N]; -inf
            for weight 0.

    Returns:
        Effective sample size (Kish), from 1 to N; 0 if all weights are 0.
    """
    weights = _weights(log_weights)
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0


def falls_below(log_weights: NDArray[np.float64], share: float) -> bool:
    """Return whether the effective sample size is less than the fraction `share` of the number of particles.

    A difference of less than 0.1 % does not count, because equal weights differ by rounding.

    Args:
        log_weights: Natural logarithms of the weights of N particles (outputs sampled in parallel), float64 [N]; -inf
            for weight 0.
        share: Fraction in [0, 1].
    """
    return effective_sample_size(log_weights) < share * len(log_weights) * (1 - _ROUNDING)


def log_mean_weight(log_weights: NDArray[np.float64]) -> float:
    """Return the natural logarithm of the mean weight of the particles (outputs sampled in parallel).

    The mean weight is an unbiased estimate of the probability that the model gives to all valid outputs together.

    Args:
        log_weights: Natural logarithms of the weights, float64 [N]; -inf for weight 0.

    Returns:
        Logarithm of the mean; -inf if all weights are 0.
    """
    largest = float(log_weights.max())
    return largest if np.isinf(largest) else largest + float(np.log(_weights(log_weights).mean()))


def resample(log_weights: NDArray[np.float64], uniform: float) -> NDArray[np.int64]:
    """Choose the particles (outputs sampled in parallel) to copy, by systematic resampling (Kitagawa 1996).

    A particle with the fraction w of the total weight gets N w copies, rounded up or down. The first copy stays at the
    particle's index. Further copies replace particles that get no copy. For example, the weights 1, 1, 0, 0 give the
    indices [0, 1, 0, 1].

    Args:
        log_weights: Natural logarithms of the weights, float64 [N]; -inf for weight 0. At least one weight must be
            above 0.
        uniform: A random number in [0, 1).

    Returns:
        int64 [N]: value i is the index of the particle to copy to index i.
    """
    many = len(log_weights)
    cumulative = _weights(log_weights).cumsum()
    places = np.minimum((uniform + np.arange(many)) / many, np.nextafter(1.0, 0.0)) * cumulative[-1]
    copies = np.bincount(_pass(cumulative, places), minlength=many)
    ancestors = np.arange(many)
    ancestors[copies == 0] = np.repeat(np.arange(many), np.maximum(copies - 1, 0))
    return ancestors


def draw_particle(log_weights: NDArray[np.float64], uniform: float) -> int:
    """Return the index of one particle, sampled with a probability proportional to its weight.

    Args:
        log_weights: Natural logarithms of the weights of the particles (outputs sampled in parallel), float64 [N]; -inf
            for weight 0. At least one weight must be above 0.
        uniform: A random number in [0, 1).
    """
    cumulative = _weights(log_weights).cumsum()
    return int(_pass(cumulative, np.array([uniform * cumulative[-1]]))[0])


def _weights(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights, scaled so that the largest is 1; all 0 if all weights are 0."""
    largest = log_weights.max()
    return np.zeros_like(log_weights) if np.isneginf(largest) else np.exp(log_weights - largest)


def _pass(cumulative: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices at which cumulative weights exceed `places`. Never the index of a particle of weight 0."""
    below = np.minimum(places, np.nextafter(cumulative[-1], 0.0))
    return np.searchsorted(cumulative, below, side="right").astype(np.int64)
