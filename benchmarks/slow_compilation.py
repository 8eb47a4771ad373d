"""Compilations that take as long as they are told to, inside the processes of a compile pool."""

from __future__ import annotations

import re
import time
from typing import Any

from grammar_workers.service.worker import CompileFunction, load_compiler

LOAD = "benchmarks.slow_compilation:load"
_ORDER = "compile for {} s, number {}"


def slow_choice(seconds: float, number: int) -> str:
    """The only choice of a specification that compiles for so long; different for each number."""
    return _ORDER.format(seconds, number)


def load(model: str, options: dict[str, Any]) -> tuple[str, CompileFunction]:
    """As `load_compiler`, for specifications with a `slow_choice`, too."""
    fingerprint, compile_artifact = load_compiler(model, options)

    def compile_slowly(key: str, specification: dict[str, Any], tenant: str) -> bytes:
        until = time.monotonic() + _seconds(specification)
        while time.monotonic() < until:
            pass
        return compile_artifact(key, specification, tenant)

    return fingerprint, compile_slowly


def _seconds(specification: dict[str, Any]) -> float:
    (choice, *_) = specification.get("choices") or [""]
    found = re.fullmatch(_ORDER.format("([0-9.]+)", "[0-9]+"), str(choice))
    return float(found[1]) if found else 0.0
