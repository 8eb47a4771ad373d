"""What processes cost, whatever they start and whatever ends meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

# Ray runs its workers at nice 15: beside programs at nice 0, such as a peer, they would get what those leave.
AS_NICE_AS_OTHERS = {"RAY_worker_niceness": "0"}


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU time of processes up to now, with that of children that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of ended children
    return total
