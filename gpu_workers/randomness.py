"""Counter-based randomness: a uniform number that depends on nothing but the place it is drawn for.

Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Key = seed,
counter = (output position, choice index, stream, attempt). No state, so batch composition, retries and rollback change
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


class Stream(IntEnum):
    """Independent draws at one position. Only sampling exists today; a draft model needs its own."""

    SAMPLE = 0


def philox(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox-4x32-10. counter: uint64 [n, 4], key: uint64 [n, 2], every value below 2**32. Returns uint64 [n, 4]."""
    c0, c1, c2, c3 = (counter[:, i] for i in range(4))
    k0, k1 = key[:, 0], key[:, 1]
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> _32) ^ c1 ^ k0, product1 & _LOW, (product0 >> _32) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=1)


def uniforms(
    seeds: Sequence[int],
    choice_indices: Sequence[int],
    positions: Sequence[int],
    stream: Stream = Stream.SAMPLE,
    attempts: Sequence[int] | int = 0,
) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (seed, choice index, output position). float64 [n].

    `attempts` (below 2**32) tells apart draws at one position, where some are taken back.
    """
    seed = np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=np.uint64)
    key = np.stack([seed & _LOW, seed >> _32], axis=1)
    counter = np.zeros((len(seed), 4), dtype=np.uint64)
    counter[:, 0] = positions
    counter[:, 1] = choice_indices
    counter[:, 2] = stream
    counter[:, 3] = attempts
    words = philox(counter, key)
    return ((words[:, 0] >> np.uint64(5)) * 67108864.0 + (words[:, 1] >> np.uint64(6))) / 9007199254740992.0
