"""Laws of the distances at which requests leave whose compilations ended together."""

from __future__ import annotations

import itertools
import random

import pytest

from deployments.vllm.compilers import Spacing

ROUNDING = 1e-9


def leaving(came: list[float], ready: list[float]) -> list[float]:
    """When each leaves, in the order in which they are ready."""
    spacing = Spacing()
    return [at + spacing.delay(arrival, at) for arrival, at in zip(came, ready, strict=True)]


def test_a_bunch_leaves_half_as_far_apart_as_it_came() -> None:
    came = [100.0, 100.05, 100.1, 100.15, 100.2]
    assert leaving(came, [100.3] * 5) == pytest.approx([100.3, 100.325, 100.35, 100.375, 100.4])


@pytest.mark.parametrize("held_up", [0.0, 0.01, 3.0])
def test_who_is_not_held_up_longer_than_others_does_not_wait(held_up: float) -> None:
    came = sorted(random.Random(1).uniform(10, 20) for _ in range(200))
    ready = [at + held_up for at in came]
    assert leaving(came, ready) == pytest.approx(ready)


def test_who_came_together_leaves_together() -> None:
    assert leaving([50.0] * 8, [50.5] * 8) == [50.5] * 8


@pytest.mark.parametrize("seed", range(30))
def test_laws_of_any_traffic(seed: int) -> None:
    """A compiler that is now fast, now stuck; some overtake, as with two compile processes."""
    draw = random.Random(seed)
    came = list(itertools.accumulate((draw.expovariate(20) for _ in range(400)), initial=1000.0))
    free, queue = 0.0, []
    for at in came:
        free = max(free, at) + draw.choice([0.0, 0.005, 0.02, 0.5 * (draw.random() < 0.05)])
        queue.append((free + draw.choice([0.0, 0.0, 0.1]), at))
    queue.sort()
    ready = [at for at, _ in queue]
    came = [at for _, at in queue]
    left = leaving(came, ready)
    latest = list(itertools.accumulate(came, max))
    longest = list(itertools.accumulate((at - arrival for at, arrival in queue), max))
    assert left == sorted(left)
    for number in range(1, len(left)):
        assert left[number] - left[number - 1] >= (latest[number] - latest[number - 1]) / 2 - ROUNDING
        assert -ROUNDING <= left[number] - ready[number] <= longest[number] / 2 + ROUNDING
