"""`python -m benchmarks.gpu` on a CPU, small: every part of it that needs no GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.gpu import checks, pareto, parts, report
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.checks import Check
from benchmarks.gpu.copies import CopyCounter
from benchmarks.gpu.figures import WAYS, Draws, Step
from benchmarks.gpu.models import SHAPES, largest_fitting, made_vocabulary, random_llama
from benchmarks.gpu.parts import DIFFERS, Part
from benchmarks.gpu.report import Document
from benchmarks.gpu.trace import Trace
from benchmarks.gpu.workload import automata
from gpu_workers.engine import step_loop
from gpu_workers.sampling import sampler
from gpu_workers.sampling.distribution import inverse_cdf
from gpu_workers.sampling.masked_scores import masked_scores

CPU = torch.device("cpu")
TOY = ["--device", "cpu", "--size", "toy", "--tokens", "96", "--prompt", "8", "--vocabularies", "1k", "--rows", "3"]


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def here(command: list[str], **_: Any) -> Any:
    """A part in this process, which has the time behind it that a new one needs to import everything."""
    return subprocess.CompletedProcess(command, main(command[3:]))


def test_the_whole_program_in_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "subprocess", SimpleNamespace(run=here, TimeoutExpired=subprocess.TimeoutExpired))
    monkeypatch.setattr(checks, "static_steps", lambda device, how: Check(how, 400, 0))  # compiling takes minutes
    file = tmp_path / "gpu.json"
    assert main([*TOY, "--requests", "6", "--output", str(file)]) == 0
    document = Document.read(file)
    assert document.machine["shape"] == "toy" and document.machine["torch"] == torch.__version__
    found = [one for entries in document.entries.values() for one in entries]
    done = [one for one in found if isinstance(one, Check)]
    assert len(done) > 8 and all(check.differing == 0 and check.compared > 100 for check in done)
    steps = [one for one in found if isinstance(one, Step)]
    assert [step.way for step in steps] == [way.name for way in WAYS]
    for step, way in zip(steps, WAYS, strict=True):
        assert step.ms > 0 and step.steps > 0
        assert (step.on_device > 0.5) == (way.draws_on == "device")
        assert step.tokens > 1.2 or not (way.drafts and way.guided)
    assert [one.rows for one in found if isinstance(one, Draws)] == [3]
    traced = [one for one in found if isinstance(one, Trace)]
    assert len(traced) == 5 and all(0 < sum(one.host.values()) < 2 * one.wall for one in traced)
    printed = capsys.readouterr().out
    assert printed.count("equal\n") == 2 * len(done) and "missing" not in printed
    assert main([*TOY, "--output", str(file)]) == 0
    assert capsys.readouterr().out == document.table() + "\n"  # nothing runs twice


def test_parts_that_fail_are_told_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpu.json"
    first, second = Part("kernel", lambda settings, _: iter(())), Part("trace", lambda settings, _: iter(()))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "false")  # a program that fails at once
        parts.run_apart(first, TOY, file, 60)
    parts.run_apart(second, TOY, file, 0.1)
    assert Document.read(file).states["kernel"][0] == "ended with status 1"
    parts.run_apart(first, TOY, file, 60)
    states = Document.read(file).states
    assert states["kernel"][0] == "done" and states["trace"][0] == "took more than 0 s"
    assert main([*TOY, "--minutes", "0", "--output", str(file)]) == 2
    assert "missing: tokens in float64, tokens in float32, compiled steps, trace" in capsys.readouterr().out


def test_a_wrong_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Tensor:
        scores = masked_scores(*arguments)
        scores[-1, 7] = 0.5
        return scores

    assert checks.masks(CPU).differing == 0
    monkeypatch.setattr(checks, "masked_scores", wrong)
    assert checks.masks(CPU).differing == 12


def test_a_wrong_token_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what `overlap` changes goes wrong: the way that everything is compared with stays as it is."""
    right = step_loop.launching

    def wrong(device: torch.device, overlap: bool | None) -> Any:
        if overlap:
            monkeypatch.setattr(sampler, "inverse_cdf", lambda weights, uniform: inverse_cdf(weights, 1 - uniform))
        return right(device, overlap)

    monkeypatch.setattr(step_loop, "launching", wrong)
    assert (
        main([*TOY, "--requests", "3", "--part", "tokens in float64", "--output", str(tmp_path / "gpu.json")])
        == DIFFERS
    )
    assert "DIFFER" in capsys.readouterr().out


def test_curves_are_of_the_steps_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def step(rows: int, way: str, ms: float, tokens: float = 1.0) -> Step:
        return Step(4096, rows, way, ms, 10, tokens, 0.0, 0, 0)

    file, picture = tmp_path / "gpu.json", tmp_path / "pareto.svg"
    steps = [step(8, "guided", 20.0), step(1, "guided", 10.0), step(8, "drafts", 20.0, 1.5), Draws(4096, 8, 1, 1, 1, 1)]
    Document({}, {"steps": ["done", 1]}, {"steps": steps}).write(file)
    pareto.main([str(file), "--vocabulary", "4096", "--picture", str(picture)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "| sequences | guided | drafts |"
    assert printed[2:] == ["| 1 | 100 / 100 |  |", "| 8 | 50 / 400 | 75 / 600 |"]
    drawn = ElementTree.parse(picture).getroot()
    assert [one.tag.rsplit("}")[-1] for one in drawn].count("circle") == 3
    with pytest.raises(SystemExit):
        pareto.main([str(file)])


def test_copies_are_counted_both_ways() -> None:
    with CopyCounter() as counter:
        torch.zeros(3, 5).to("meta")
        torch.empty(7, device="meta", dtype=torch.int64).copy_(torch.zeros(7))
        torch.zeros(9).to(torch.float64)
    assert (counter.up, counter.down) == (3 * 5 * 4 + 7 * 4, 0)


@pytest.mark.parametrize("tokens", [1000, 4096])
def test_shapes_know_their_size(tokens: int) -> None:
    model = random_llama(SHAPES["toy"], tokens, 64, torch.float32, CPU)
    norms = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 1)
    assert SHAPES["toy"].parameters(tokens) == sum(one.numel() for one in model.parameters()) - norms
    assert 7.5e9 < SHAPES["8b"].parameters(128_256) < 8.5e9


def test_less_memory_smaller_shape() -> None:
    shapes = [largest_fitting(131_072, 128, 160, gib << 30) for gib in (141, 80, 40, 24, 16, 8, 1)]
    assert shapes[0] == "8b" and shapes[-1] == "1b" and "3b" in shapes
    assert shapes == sorted(shapes, reverse=True)


def test_made_vocabularies_spell_what_they_are_asked() -> None:
    named = made_vocabulary(1 << 10)
    assert named.vocabulary.size == 1 << 10 == len({named.vocabulary.token_bytes(i) for i in range(1 << 10)}) + 2
    text = '{"id": 17, "tag": "zäh", "text": "etaoin \ue123"}'
    assert b"".join(named.vocabulary.token_bytes(i) for i in named.spell(text)) == text.encode()


def test_records_fit_the_device_and_hardly_end() -> None:
    rng = np.random.default_rng(0)
    for fsm in automata(made_vocabulary(1 << 10).vocabulary):
        assert fsm.device_tables() is not None
        ends, state = 0, fsm.initial_state
        for _ in range(200):
            state = fsm.next_state(state, int(rng.choice(sorted(fsm.allowed_tokens(state)))))
            ends += fsm.is_terminal(state)
            state = fsm.initial_state if fsm.is_terminal(state) else state
        assert ends <= 2


def test_shares_are_of_the_same_cell() -> None:
    def step(rows: int, way: str, ms: float) -> Step:
        return Step(1024, rows, way, ms, 10, 1.0, 0.0, 0, 0)

    steps = [step(1, "guided, host", 99.0), *(step(8, way.name, 10.0 + i) for i, way in enumerate(WAYS))]
    found = report.shares(Draws(1024, 8, head=1.0, unmasked=1.5, masked=1.61, prepare=0.1), steps)
    assert found == {
        "masks": pytest.approx(0.11 / 11),
        "masks and sampling": pytest.approx(0.61 / 11),
        "guiding by the host": pytest.approx(1 / 11),
        "guiding by the device": pytest.approx(1 / 15),
    }
