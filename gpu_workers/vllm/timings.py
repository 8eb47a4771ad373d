"""Durations of mask and grammar operations, in memory that several processes share.

vLLM serves `GET /metrics` from its API process, but computes masks in its EngineCores. The process that starts these
processes creates anonymous shared memory, and puts its path into an environment variable. Each EngineCore writes its
figures to its own page of the memory. No messages are sent, and the memory disappears when its creator ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

VARIABLE = "TURNSTILE_TIMINGS"
# `fill` writes one mask into the token bitmask; `accept` accepts the tokens of one step.
OPERATIONS = ("fill", "accept")

_NAME = "turnstile-timings"
_PAGE = mmap.ALLOCATIONGRANULARITY
_FIGURES = 3
_FORMAT = struct.Struct(f"{_FIGURES * len(OPERATIONS)}d")


class Totals(NamedTuple):
    """Totals of the durations of one kind of operation since the start, over all processes.

    Attributes:
        many: Number of calls.
        seconds: Sum of the durations of the calls.
        slowest_s: Longest duration of a call, in seconds.
    """

    many: float = 0.0
    seconds: float = 0.0
    slowest_s: float = 0.0


class Timing:
    """Durations of one kind of operation in this process. The figures are not exact if several threads write at once.

    Args:
        figures: Memory for all kinds of operations, float64, written in place. Each kind has three figures: number of
            calls, sum and maximum of the durations in seconds.
        place: Index of the kind of operation in `OPERATIONS`.
    """

    def __init__(self, figures: memoryview[float], place: int) -> None:
        self._figures = figures
        self._place = place * _FIGURES

    def note(self, seconds: float) -> None:
        """Count one call of the operation.

        Args:
            seconds: Duration of the call.
        """
        figures, place = self._figures, self._place
        figures[place] += 1
        figures[place + 1] += seconds
        if seconds > figures[place + 2]:
            figures[place + 2] = seconds


class Timings:
    """Durations of mask operations in this process.

    Args:
        descriptor: File descriptor of the memory that is shared with other processes; None: the durations are not
            shared.

    Attributes:
        fill: Durations of writing one mask into the token bitmask.
        accept: Durations of accepting the tokens of one request in one step.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        memory: bytearray | mmap.mmap = bytearray(_FORMAT.size)
        if descriptor is not None:
            os.write(descriptor, bytes(_PAGE))  # appended, so no other process gets the same page
            memory = mmap.mmap(descriptor, _PAGE, offset=os.lseek(descriptor, 0, os.SEEK_CUR) - _PAGE)
        figures = memoryview(memory)[: _FORMAT.size].cast("d")
        self.fill, self.accept = (Timing(figures, place) for place in range(len(OPERATIONS)))


def share_timings() -> None:
    """Create the memory in which processes share durations of mask operations, unless it exists.

    The environment variable `TURNSTILE_TIMINGS` is set to its path, for child processes. The memory disappears when
    this process ends.
    """
    with _shared() as known:
        if known is None:
            descriptor = os.memfd_create(_NAME)
            os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{descriptor}"


def own_timings() -> Timings:
    """Return an object that records the durations of this process's mask operations. All figures are 0 at first.

    The figures are in the shared memory of `share_timings`, if the environment variable `TURNSTILE_TIMINGS` is set.
    """
    with _shared() as descriptor:
        return Timings(descriptor)


def read_totals() -> dict[str, Totals]:
    """Return the totals of durations over all processes that write to the shared memory.

    Returns:
        Totals by operation: `fill` (write one mask into the token bitmask) and `accept` (accept the tokens of one
        step). All are 0 if there is no shared memory.
    """
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
    """Yield a file descriptor of the shared memory; None if there is none, or if its owner has ended."""
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
