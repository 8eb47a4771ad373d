"""Every program of `benchmarks` can be imported: nobody else runs most of them."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

ELSEWHERE = {"vllm", "xgrammar", "llguidance"}
"""Packages of the programs that measure others; their environments have them."""
NAMES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_it_can_be_imported(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name in ELSEWHERE
