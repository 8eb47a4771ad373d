"""The parts of a stop that need no server: signals, and waiting for requests. (Whole stops: tests/integration.)"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from deployments.haproxy import admin
from deployments.local import stop as local_stop
from deployments.local.stop import StopSignals, finish_requests


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stops = StopSignals()
    stops.install()
    yield stops
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_comes_twice_at_once_is_one(signals: StopSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stop, "TWICE_S", 1e6)
    assert not signals.stop.is_set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert signals.stop.is_set() and not signals.hurry.is_set()


def test_a_second_signal_means_haste(signals: StopSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stop, "TWICE_S", 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not signals.hurry.is_set()
    signals.install()  # as after Ray has put its own handlers there
    os.kill(os.getpid(), signal.SIGINT)
    assert signals.hurry.is_set()


@pytest.mark.parametrize(
    ("open_requests", "graceful_shutdown_timeout_s", "haste", "cut"),
    [([3, 2, 0], 60, False, 0), ([0], 0, False, 0), ([3, 3], 0, False, 3), ([2, 1, 1], 60, True, 2)],
)
def test_open_requests_may_finish(
    open_requests: list[int], graceful_shutdown_timeout_s: float, haste: bool, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones are refused before the first look at those that are open."""
    said: list[str] = []
    monkeypatch.setattr(admin, "refuse_requests", lambda: said.append("refuse"))
    monkeypatch.setattr(admin, "open_requests", lambda: said.append("look") or open_requests.pop(0))
    hurry = threading.Event()
    if haste:
        hurry.set()
    assert finish_requests(said.append, hurry, graceful_shutdown_timeout_s=graceful_shutdown_timeout_s) == cut
    assert said[:2] == ["refuse", "look"]
