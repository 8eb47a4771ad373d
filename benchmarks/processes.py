"""Measures the CPU time of processes and their descendants. Processes may end during the measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

# Ray runs its workers at nice 15: beside programs at nice 0, such as a peer, they would get what those leave.
AS_NICE_AS_OTHERS = {"RAY_worker_niceness": "0"}


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all of its descendants.

    Args:
        pid: Process ID.
    """
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds that processes and their ended children have used so far.

    Args:
        processes: The processes. A process that does not exist any more counts as 0.
    """
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of ended children
    return total
