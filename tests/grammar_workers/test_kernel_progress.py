"""What is said while kernels are compiled."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator

import pytest

from grammar_workers import kernel_progress
from grammar_workers.kernel_progress import compile_logged, compile_visibly
from grammar_workers.matching.kernels.compile_all import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Each look at it takes two seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        self.now += 2
        return self.now


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Six kernels are compiled; how many were done when it ended."""
    ended: list[int] = []

    def compiling() -> Generator[Progress, None, None]:
        done = 0
        try:
            for done in range(7):
                yield Progress(done, 6)
        finally:
            ended.append(done)

    monkeypatch.setattr(kernel_progress, "compile_kernels", compiling)
    monkeypatch.setattr(kernel_progress, "time", Clock())
    return ended


def test_elsewhere_a_line_at_once_and_then_every_five_seconds(closed: list[int]) -> None:
    out = io.StringIO()
    compile_visibly(out)
    words = "compiling Turnstile's kernels, once for this installation:"
    assert out.getvalue().splitlines() == [
        f"{words} 0 of 6, 2 s",
        f"{words} 3 of 6, 8 s",
        f"{words} 6 of 6, 14 s",
        "6 kernels compiled in 14 s",
    ]


def test_a_log_has_the_same_lines(closed: list[int], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    compile_logged(logging.getLogger("vllm.turnstile").info)
    out = io.StringIO()
    compile_visibly(out)
    assert caplog.messages == out.getvalue().splitlines() and len(caplog.messages) == 4


def test_a_bar_on_a_terminal(closed: list[int]) -> None:
    out = Terminal()
    compile_visibly(out)
    bars = out.getvalue().split("\r")
    assert bars[1].endswith(f"0 of 6 [{'.' * 30}] 2 s")
    assert bars[4].endswith(f"3 of 6 [{'#' * 15}{'.' * 15}] 8 s")
    assert bars[-1].endswith(f"6 of 6 [{'#' * 30}] 14 s\n6 kernels compiled in 14 s\n")


def test_who_is_stopped_waits_for_no_kernel(closed: list[int]) -> None:
    lines: list[str] = []
    compile_logged(lines.append, stopped=lambda: True)
    assert closed == [0]
    assert lines[-1] == "0 kernels compiled in 2 s (the others when they are called)"


def test_nothing_is_said_where_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_progress, "compile_kernels", lambda: iter(()))
    out = io.StringIO()
    compile_visibly(out)
    assert out.getvalue() == ""


def test_a_log_says_nothing_where_all_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_progress, "compile_kernels", lambda: iter(()))
    caplog.set_level(logging.INFO)
    compile_logged(logging.getLogger("vllm.turnstile").info)
    assert caplog.messages == []
