"""How long fills of masks and steps of grammars take, in memory that another process reads.

vLLM answers `GET /metrics` in its API process and makes masks in its engine cores. Each of those notes its figures in a
file of a folder whose name is in the environment of them all; nobody sends anything.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

FOLDER_VARIABLE = "TURNSTILE_TIMINGS"
OPERATIONS = ("fill", "accept")
"""A row of the bitmask written; the tokens of a step accepted."""

_FIGURES = 3
_FORMAT = struct.Struct(f"{_FIGURES * len(OPERATIONS)}d")


class Totals(NamedTuple):
    """Of one operation since the start: how often, how many seconds in all, and the longest that one took."""

    many: float = 0.0
    seconds: float = 0.0
    slowest_s: float = 0.0


class Timing:
    """The figures of one operation; cheap, and not exact where threads note at the same time."""

    def __init__(self, figures: memoryview[float], place: int) -> None:
        self._figures = figures
        self._place = place * _FIGURES

    def note(self, seconds: float) -> None:
        figures, place = self._figures, self._place
        figures[place] += 1
        figures[place + 1] += seconds
        if seconds > figures[place + 2]:
            figures[place + 2] = seconds


class Timings:
    """The figures of this process; in a file of `folder`, if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            memory: bytearray | mmap.mmap = bytearray(_FORMAT.size)
        else:
            path = folder / f"{os.getpid()}.timings"
            path.write_bytes(bytes(_FORMAT.size))
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), _FORMAT.size)
        figures = memoryview(memory).cast("d")
        self.fill, self.accept = (Timing(figures, place) for place in range(len(OPERATIONS)))


def own_timings() -> Timings:
    """Those that other processes read, where the environment names a folder that is there."""
    name = os.environ.get(FOLDER_VARIABLE)
    return Timings(Path(name) if name and Path(name).is_dir() else None)


def read_totals(folder: Path) -> dict[str, Totals]:
    """By operation, over all processes that have noted in `folder`."""
    totals = dict.fromkeys(OPERATIONS, Totals())
    for path in folder.glob("*.timings"):
        data = path.read_bytes()
        if len(data) != _FORMAT.size:
            continue  # it is being made
        figures = _FORMAT.unpack(data)
        for place, name in enumerate(OPERATIONS):
            one, all_ = Totals(*figures[place * _FIGURES : (place + 1) * _FIGURES]), totals[name]
            totals[name] = Totals(all_.many + one.many, all_.seconds + one.seconds, max(all_.slowest_s, one.slowest_s))
    return totals
