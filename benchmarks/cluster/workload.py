"""Requests: when they arrive, under which grammar and at which replica."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from benchmarks.cluster.measured import Grammar


@dataclasses.dataclass(frozen=True)
class Workload:
    """`rate` requests with a grammar a second, in all; `unseen` of them bring one that nobody has sent before.

    The others are under one of `known` grammars, the one of rank r with a probability that falls with 1/r (Zipf).
    Every `burst_every_s` seconds, where that is given, `burst_times` as many arrive for `BURST_S`, and a fifth of those
    are under one new grammar that all bring at once, as after a release.
    """

    rate: float
    unseen: float = 0.05
    known: int = 20_000
    burst_every_s: float | None = None
    burst_times: float = 3.0

    def popularity(self) -> np.ndarray:
        """Probabilities of the known grammars, `(known,)`."""
        weights = 1.0 / np.arange(1, self.known + 1)
        return weights / weights.sum()

    def draw(self, seconds: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Times of arrival, in order, and the number of each one's grammar, `(requests,)` each: known ones have the
        numbers below `known`.
        """
        times = random.uniform(0, seconds, random.poisson(self.rate * seconds))
        numbers = random.choice(self.known, size=len(times), p=self.popularity())
        new = random.random(len(times)) < self.unseen
        numbers[new] = self.known + np.arange(new.sum())
        if self.burst_every_s is not None:
            for burst, begin in enumerate(np.arange(self.burst_every_s / 2, seconds, self.burst_every_s)):
                extra = random.poisson(self.rate * (self.burst_times - 1) * BURST_S)
                more = random.choice(self.known, size=extra, p=self.popularity())
                more[random.random(extra) < BURST_SHARE] = self.known + len(times) + burst
                times = np.concatenate([times, random.uniform(begin, begin + BURST_S, extra)])
                numbers = np.concatenate([numbers, more])
        order = np.argsort(times, kind="stable")
        return times[order], numbers[order]


BURST_S = 10.0
BURST_SHARE = 0.2


def key_of(number: int) -> str:
    """A grammar key: what the ring hashes."""
    return hashlib.sha256(f"grammar {number}".encode()).hexdigest()


class Grammars:
    """Number or key -> what it costs, drawn from those measured by the digest of its key."""

    def __init__(self, measured: tuple[Grammar, ...]) -> None:
        self._measured = measured

    def of(self, key: str) -> Grammar:
        return self._measured[int(key[:12], 16) % len(self._measured)]
