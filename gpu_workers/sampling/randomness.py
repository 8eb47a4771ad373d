"""Counter-based random numbers: a number depends only on the seed and on the position for which it is used.

The generator is Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Key = seed, counter = (output position, choice index, stream, attempt); see `uniforms`. There is no state, so the
composition of the batch, retries and rollbacks do not change a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numba import uint64
from numpy.typing import NDArray
from torch import Tensor

from grammar_workers.numba_options import compiled_for

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


class Stream(IntEnum):
    """Purpose of a random number. Numbers of different purposes are independent, even at the same output position.

    Attributes:
        SAMPLE: Samples a token.
        DRAFT: Samples a draft from the distribution of a draft model or EAGLE-3 head.
        ACCEPT: Decides if a randomly sampled draft is accepted.
        RESAMPLE: Selects the particles (parallel outputs of conditional sampling) to copy.
        SELECT: Selects the particle that becomes the response.
    """

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2
    RESAMPLE = 3
    SELECT = 4


@compiled_for((uint64[:, ::1], uint64[:, ::1]), nogil=True)
def philox(counter, key):  # type: ignore[no-untyped-def]
    """Compute random words by Philox-4x32-10, a random function of counter and key.

    The function is compiled, because NumPy's overhead dominates for the few sequences of a step.

    Args:
        counter: Counters, uint64 [n, 4], every value below 2**32.
        key: Keys, uint64 [n, 2], every value below 2**32.

    Returns:
        Random words, uint64 [n, 4], every value below 2**32.
    """
    words = np.empty_like(counter)
    low, half = np.uint64(_LOW), np.uint64(32)
    multiplier0, multiplier1 = np.uint64(_MULTIPLIERS[0]), np.uint64(_MULTIPLIERS[1])
    weyl0, weyl1 = np.uint64(_WEYL[0]), np.uint64(_WEYL[1])
    for i in range(len(counter)):
        c0, c1, c2, c3 = counter[i]
        k0, k1 = key[i]
        for _ in range(_ROUNDS):
            product0, product1 = multiplier0 * c0, multiplier1 * c2
            c0, c2 = (product1 >> half) ^ c1 ^ k0, (product0 >> half) ^ c3 ^ k1
            c1, c3 = product1 & low, product0 & low
            k0, k1 = (k0 + weyl0) & low, (k1 + weyl1) & low
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = c0, c1, c2, c3
    return words


def uniforms(
    seeds: Sequence[int],
    choice_indices: Sequence[int],
    positions: Sequence[int],
    stream: Stream = Stream.SAMPLE,
    attempts: Sequence[int] | int = 0,
) -> NDArray[np.float64]:
    """Return one random number in [0, 1), with 53 random bits, for each of n sequences.

    Args:
        seeds: Seed of each sequence, taken modulo 2**64.
        choice_indices: Index of each sequence among the outputs of its client request (`n` in OpenAI's API).
        positions: Output position of the token for which each number is used, from 0.
        stream: Purpose of the numbers.
        attempts: Numbers from 0 to 2**32 - 1. When a position is sampled again after a rollback, another attempt gives
            another random number. One value for all sequences, or one for each.

    Returns:
        float64 [n].
    """
    many = len(seeds)
    key = np.array([(seed & _LOW, seed >> 32 & _LOW) for seed in seeds], np.uint64).reshape(many, 2)
    counter = np.empty((many, 4), np.uint64)
    counter[:, 0] = positions
    counter[:, 1] = choice_indices
    counter[:, 2] = stream
    counter[:, 3] = attempts
    words = philox(counter, key)
    return ((words[:, 0] >> 5) * 67108864.0 + (words[:, 1] >> 6)) / 9007199254740992.0


def device_uniforms(seed_low: Tensor, seed_high: Tensor, positions: Tensor, choice_indices: Tensor) -> Tensor:
    """Return the numbers of `uniforms` for `Stream.SAMPLE` and attempt 0, computed on the device of the arguments.

    Args:
        seed_low: Lower 32 bits of the seed of each of n sequences, int64 [n].
        seed_high: Upper 32 bits of each seed, int64 [n].
        positions: Output position of each token, int64 [n], below 2**32.
        choice_indices: Index of each sequence among the outputs of its client request, int64 [n], below 2**32.

    Returns:
        Random numbers in [0, 1), float64 [n].
    """
    c0, c1 = positions, choice_indices
    c2 = torch.full_like(positions, int(Stream.SAMPLE))
    c3 = torch.zeros_like(positions)
    k0, k1 = seed_low, seed_high
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((product1 >> 32) & _LOW) ^ c1 ^ k0, ((product0 >> 32) & _LOW) ^ c3 ^ k1
        c1, c3 = product1 & _LOW, product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return ((c0 >> 5).double() * 67108864.0 + (c1 >> 6).double()) / 9007199254740992.0
