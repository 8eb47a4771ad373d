"""Figures about masks, noted in one process and read in another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from deployments.vllm.metrics import MaskMetrics
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.timings import VARIABLE, own_timings, read_totals, share_timings
from grammar_workers import Vocabulary, compile_grammar

NOTE = "from gpu_workers.vllm.timings import own_timings as o\nt = o()\nt.fill.note(0.5)\nt.fill.note(0.25)"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    share_timings()


@pytest.mark.usefixtures("shared")
def test_processes_are_summed_up_and_the_slowest_stands_out() -> None:
    subprocess.run([sys.executable, "-c", NOTE], check=True, env=dict(os.environ))
    own = own_timings()
    own.fill.note(2.0)
    own.accept.note(0.125)
    assert read_totals() == {"fill": (3, 2.75, 2.0), "accept": (1, 0.125, 0.125)}
    registry = CollectorRegistry()
    registry.register(MaskMetrics())
    lines = generate_latest(registry).decode().splitlines()
    assert "turnstile_mask_fill_slowest_seconds 2.0" in lines and "turnstile_token_accepts_total 1.0" in lines


@pytest.mark.usefixtures("shared")
def test_memory_is_shared_once() -> None:
    before = os.environ[VARIABLE]
    share_timings()
    assert os.environ[VARIABLE] == before


def test_without_shared_memory_figures_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that shared it is gone, or its number is that of another one, which has another file there."""
    other = tmp_path / "turnstile-timings"
    other.write_text("")
    with other.open() as file:
        for value in ("", str(tmp_path / "gone"), str(other), f"/proc/{os.getpid()}/fd/{file.fileno()}"):
            monkeypatch.setenv(VARIABLE, value)
            own_timings().fill.note(1.0)
            assert read_totals()["fill"] == (0, 0, 0)
    assert other.read_text() == ""


@pytest.mark.usefixtures("shared")
def test_a_grammar_notes_its_rows_and_steps() -> None:
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])
    fsm = compile_grammar({"type": "regex", "pattern": "a{3}"}, vocabulary)
    grammar = RequestGrammar(fsm, (), timings=own_timings())
    bitmask = torch.zeros((1, 9), dtype=torch.int32)
    for _ in range(3):
        grammar.fill_bitmask(bitmask, 0)
        grammar.accept_tokens("r", [ord("a")])
    fill, accept = read_totals().values()
    assert fill.many == accept.many == 3
    assert 0 < fill.slowest_s <= fill.seconds and 0 < accept.slowest_s <= accept.seconds
