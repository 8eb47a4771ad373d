"""What was measured, as `benchmarks.cluster.measure` has written it."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

FILE = Path(__file__).with_name("measured.json")


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """CPU seconds to compile and to load, bytes stored and in the memory of a model replica."""

    compile_s: float
    load_s: float
    stored: int
    loaded: int


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """CPU seconds: of a compiler replica for a call about a known grammar, of Redis for a call and for each byte."""

    lookup_s: float
    redis_call_s: float
    redis_byte_s: float
    grammars: tuple[Grammar, ...]
    """Of MaskBench."""
    heavy_grammars: tuple[Grammar, ...]
    """Of `benchmarks.scale_out`."""


@functools.cache
def measured() -> Measured:
    data = json.loads(FILE.read_text())
    kinds = {name: tuple(Grammar(*one) for one in data.pop(name)) for name in ("grammars", "heavy_grammars")}
    return Measured(**data, **kinds)
