"""Kernels compiled before the first request: nothing is left to be compiled while somebody waits for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from grammar_workers import TokenFSM, Vocabulary, compile_grammar, warm_up, warm_up_formats
from grammar_workers.matching.kernels import compile_all
from grammar_workers.numba_options import CALLED, cache

DEEP = {
    "$defs": {"tree": {"properties": {"a": {"$ref": "#/$defs/tree"}, "b": {"type": "array", "uniqueItems": False}}}},
    "$ref": "#/$defs/tree",
}
MANY = {
    "type": "object",
    "properties": {f"name{i}": {"enum": [f"{i}-{j}" for j in range(40)]} for i in range(60)},
    "additionalProperties": {"type": "string", "pattern": "^[a-z]{3,9}$", "maxLength": 7},
}
GRAMMAR = 'root ::= "[" (root ("," root)*)? "]" | [a-z]+'


def use_everything(vocabulary: Vocabulary) -> None:
    """Compile, walk and store automata of every kind, until their tables grow."""
    warm_up(vocabulary)
    warm_up_formats(vocabulary)
    for specification in (
        {"type": "json_schema", "schema": DEEP},
        {"type": "json_schema", "schema": MANY},
        {"type": "json_schema", "schema": {"type": "string", "minLength": 2, "maxLength": 30, "pattern": "(a|b)c"}},
        {"type": "choice", "choices": ["yes", "no", "nobody"]},
        {"type": "regex", "pattern": "(ab|[^c-e])+x{2,70}"},
        {"type": "grammar", "syntax": "gbnf", "text": GRAMMAR},
    ):
        made = compile_grammar(specification, vocabulary)
        for fsm in (made, TokenFSM.from_bytes(made.to_bytes(), vocabulary)):
            fsm.prefetch_masks(3000)
            fsm.materialize(max_states=64)
            state = fsm.initial_state
            for _ in range(300):
                allowed = sorted(fsm.allowed_tokens(state))
                if not allowed:
                    break
                state = fsm.next_state(state, allowed[len(allowed) // 2])
            fsm.shortest_completion(fsm.initial_state)
            fsm.device_tables()


CALLS = """
from grammar_workers.numba_options import CALLED
from tests.grammar_workers.test_kernel_compilation import use_everything
from tests.grammar_workers.vocabularies import bytes_vocabulary

use_everything(bytes_vocabulary())
unloaded = [kernel for kernel, _ in CALLED if not kernel.signatures]
print(len(unloaded), *(kernel.__name__ for kernel, arguments in CALLED if set(kernel.signatures) - {arguments}))
"""
COMPILATIONS = """
from numba.core import event
from tests.grammar_workers.test_kernel_compilation import use_everything
from tests.grammar_workers.vocabularies import bytes_vocabulary

class Compilations(event.Listener):
    names = []
    def on_start(self, one): self.names.append(one.data["dispatcher"].py_func.__qualname__)
    def on_end(self, one): pass

event.register("numba:compile", Compilations())
use_everything(bytes_vocabulary())
print(*Compilations.names)
"""
COMPILE = """
from grammar_workers.matching.kernels.compile_all import compile_kernels

print(*[number for progress in list(compile_kernels())[-1:] for number in progress])
"""


def run(program: str, **environment: str) -> list[str]:
    """The words that a fresh process prints."""
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env={**inherited, **environment}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()


def test_python_calls_kernels_with_the_types_that_they_are_compiled_for() -> None:
    unloaded, *called_otherwise = run(CALLS)
    assert int(unloaded) == 0, "a step would load a kernel"
    assert called_otherwise == []


def test_every_kernel_that_python_calls_is_in_one_share() -> None:
    shared = [one.__name__ for share in range(len(compile_all.SHARES)) for one, _ in compile_all.kernels_of(share)]
    assert sorted(shared) == sorted(kernel.__name__ for kernel, _ in CALLED)


@pytest.fixture
def quick_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Two shares of one small kernel each, and no folder of kernels."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(compile_all, "SHARES", (("matching.kernels.step",), ("pushdown.instructions",)))
    yield tmp_path


def test_progress_counts_up_to_all_and_a_second_time_nothing_is_done(
    quick_shares: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_all, "_shares_compiled", lambda base: iter([0, 1, 0, 2]))
    told = list(compile_all.compile_kernels())
    assert told == [(0, 3), (0, 3), (1, 3), (1, 3), (3, 3)]
    assert list(compile_all.compile_kernels()) == []


def test_kernels_in_the_package_are_enough_unless_they_are_of_another_version(
    quick_shares: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_all, "_shares_compiled", lambda base: iter([3]))
    shipped = cache.kernel_folders()[1]
    shipped.mkdir(parents=True)
    assert list(compile_all.compile_kernels()), "a folder without all kernels"
    (cache.kernel_folders()[0] / cache.COMPLETE).unlink()
    (shipped / cache.COMPLETE).touch()
    assert list(compile_all.compile_kernels()) == []
    monkeypatch.setattr(numba, "__version__", "0.1")
    assert list(compile_all.compile_kernels())


def test_shares_that_end_early_are_not_taken_for_done(quick_shares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all, "_shares_compiled", lambda base: iter([1]))
    assert list(compile_all.compile_kernels())[-1] == (1, 3)
    assert list(compile_all.compile_kernels())[-1] == (1, 3), "it must try again"


def test_another_process_that_compiles_is_waited_for(quick_shares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all, "_shares_compiled", lambda base: iter([1, 2]))
    monkeypatch.setattr(compile_all, "PAUSE_S", 0.0)
    first, second = compile_all.compile_kernels(), compile_all.compile_kernels()
    assert [next(first), next(first)] == [(0, 3), (1, 3)]
    assert [next(second), next(second), next(second)] == [(0, 3)] * 3
    assert list(first) == [(3, 3)]
    assert list(second) == [(3, 3)], "what the first one has compiled is not compiled again"


@pytest.mark.parametrize("folder", ["/proc/none", f"/{'too long' * 99}"])  # no such folder, and no answer about it
def test_a_cache_that_cannot_be_written_to_is_no_error(
    quick_shares: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", folder)
    assert len(list(compile_all.compile_kernels())) == 1


@pytest.mark.long
def test_afterwards_a_fresh_process_compiles_nothing(tmp_path: Path) -> None:
    """And neither does one with the kernels in the package, which are for other CPUs, too."""
    package = tmp_path / "copy" / "grammar_workers"
    shutil.copytree(cache.SHIPPED.parent, package, ignore=shutil.ignore_patterns("__pycache__", cache.SHIPPED.name))
    folders = {
        "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path]),
        "PYTHONSAFEPATH": "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "own"),
    }
    run("from grammar_workers import ship_kernels; ship_kernels.main()", **folders)
    assert run(COMPILE, **folders) == []
    assert run(COMPILATIONS, **folders) == []
    assert not (tmp_path / "own").exists()
    shutil.rmtree(package / cache.SHIPPED.name)
    done, many = run(COMPILE, **folders)
    assert done == many and int(many) > 25
    assert run(COMPILATIONS, **folders) == []
