"""How much of the time vLLM's engine core makes mask rows ahead while grammars are loaded, by a clock of the test's."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_workers.vllm import backend


class Automaton:
    """Looking at a place takes so many seconds of the clock, with each place longer."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.rounds: list[int] = []

    def prefetch_masks(self, max_places: int) -> None:
        self.rounds.append(max_places)
        self._clock.now += self._seconds * max_places * (max_places / 16) ** 0.5


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(backend, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def load_one_by_one(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, place_s: float, distance_s: float
) -> tuple[list[Automaton], float]:
    """The automata of 200 keys, one each `distance_s`, and the share of the time that their rows took."""
    automata = {f"{number:064x}": Automaton(clock, place_s) for number in range(200)}

    class Source:
        async def fetch(self, grammar: Any) -> Automaton:
            return automata[grammar.key]

    monkeypatch.setattr(backend, "stored_grammars", lambda *_: Source())
    loader = backend.GrammarLoader(SimpleNamespace(), "file:///")  # type: ignore[arg-type]
    spent = 0.0
    began = clock.now
    for key in automata:
        before = clock.now
        loader.load(key)
        loader.load(key)  # known now
        spent += clock.now - before
        clock.now += distance_s
    loader.close()
    return list(automata.values()), spent / (clock.now - began)


@pytest.mark.parametrize(
    ("place_us", "distance_s"), list(itertools.product([1, 20, 100], [0.01, 0.05, 0.2, 1.0, 30.0]))
)
def test_rows_keep_to_their_share(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, place_us: float, distance_s: float
) -> None:
    """But for one round of the fewest places, which each automaton gets."""
    place_s = place_us / 1e6
    automata, share = load_one_by_one(monkeypatch, clock, place_s, distance_s)
    fewest = 16 * place_s
    # A round takes eight times as long as the one before here, where four times are foreseen.
    assert share <= fewest / (fewest + distance_s) + 2 * backend._AHEAD_SHARE
    assert all(automaton.rounds[0] == 16 for automaton in automata)


def test_more_is_made_where_there_is_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    automata, _ = load_one_by_one(monkeypatch, clock, 1e-6, 10.0)
    assert automata[-1].rounds == [16, 64, 256, 1024]
