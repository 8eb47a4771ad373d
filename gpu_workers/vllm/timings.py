"""How long fills of masks and steps of grammars take, in memory that another process reads.

vLLM answers `GET /metrics` in its API process and makes masks in its engine cores. Each of those notes its figures in a
page of anonymous memory of the process that started them all, whose name is in their environment; nobody sends
anything, and nothing is left when that process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

VARIABLE = "TURNSTILE_TIMINGS"
OPERATIONS = ("fill", "accept")
"""A row of the bitmask written; the tokens of a step accepted."""

_NAME = "turnstile-timings"
_PAGE = mmap.ALLOCATIONGRANULARITY
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
    """The figures of this process; in memory that others read, if `descriptor` names it."""

    def __init__(self, descriptor: int | None = None) -> None:
        memory: bytearray | mmap.mmap = bytearray(_FORMAT.size)
        if descriptor is not None:
            os.write(descriptor, bytes(_PAGE))  # appended, so no other process gets the same page
            memory = mmap.mmap(descriptor, _PAGE, offset=os.lseek(descriptor, 0, os.SEEK_CUR) - _PAGE)
        figures = memoryview(memory)[: _FORMAT.size].cast("d")
        self.fill, self.accept = (Timing(figures, place) for place in range(len(OPERATIONS)))


def share_timings() -> None:
    """Makes the memory for this process and all that it starts, unless they have some. It goes with this process."""
    with _shared() as known:
        if known is None:
            descriptor = os.memfd_create(_NAME)
            os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{descriptor}"


def own_timings() -> Timings:
    """Those that other processes read, where the environment names memory for them."""
    with _shared() as descriptor:
        return Timings(descriptor)


def read_totals() -> dict[str, Totals]:
    """By operation, over all processes that have noted something."""
    totals = dict.fromkeys(OPERATIONS, Totals())
    with _shared() as descriptor:
        data = b"" if descriptor is None else os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    for page in range(0, len(data), _PAGE):
        figures = _FORMAT.unpack_from(data, page)
        for place, name in enumerate(OPERATIONS):
            one, all_ = Totals(*figures[place * _FIGURES : (place + 1) * _FIGURES]), totals[name]
            totals[name] = Totals(all_.many + one.many, all_.seconds + one.seconds, max(all_.slowest_s, one.slowest_s))
    return totals


@contextlib.contextmanager
def _shared() -> Iterator[int | None]:
    """A descriptor of the memory that the environment names; None if it is gone with its process."""
    path = os.environ.get(VARIABLE, "")
    try:
        ours = os.readlink(path).startswith(f"/memfd:{_NAME}")
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND) if ours else None
    except OSError:
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)
