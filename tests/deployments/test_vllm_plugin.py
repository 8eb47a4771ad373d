"""When the plugin puts Turnstile into a process of vLLM, and what it leaves there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.vllm import plugin

WORKER = """
import sys
from deployments.vllm.plugin import register

register()
print(sorted({"numba", "llvmlite", "ray", "numpy", "deployments.vllm.installation"} & set(sys.modules)))
"""
SCAN = """
import sys
import numba
from deployments.vllm.plugin import _hide_library

_hide_library()
for module in list(sys.modules.values()):
    for value in list(vars(module).values()):
        if hasattr(value, "__dict__"):
            vars(value).get("kernel")
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_without_an_engine_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_VLLM", "1")
    assert run(WORKER) == "[]\n"


def test_workers_can_look_at_every_module() -> None:
    """As vLLM 0.32 does where it has no Triton, in a process that has our kernels."""
    run(SCAN)


def test_it_is_installed_once_when_the_first_engine_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines import one another, and what is put into them needs them complete."""
    package = tmp_path / "engines_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "core.py").write_text("CORE = True\n")
    (package / "client.py").write_text("import engines_of_a_test.core\nCLIENT = True\n")
    (package / "other.py").touch()
    names = ("engines_of_a_test.core", "engines_of_a_test.client")
    installed: list[bool] = []

    def install() -> None:
        installed.append(all(vars(sys.modules[name]).get(name.rpartition(".")[2].upper()) for name in names))

    monkeypatch.setattr(plugin, "_ENGINES", names)
    monkeypatch.setattr(plugin, "_install", install)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TURNSTILE_VLLM", "1")
    for _ in range(2):
        plugin.register()
    importlib.import_module("engines_of_a_test.other")
    assert installed == []
    importlib.import_module("engines_of_a_test.client")
    assert installed == [True]
    plugin.register()
    assert installed == [True, True]  # an engine is there: at once; `install` itself does nothing the second time


@pytest.mark.parametrize("value", ["", "0", "false", "No"])
def test_without_the_variable_nothing_is_watched(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_VLLM", value)
    before = list(sys.meta_path)
    plugin.register()
    assert sys.meta_path == before
