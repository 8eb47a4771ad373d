"""CPU time of running processes by process and thread, from the kernel's nanosecond counters (`/proc/PID/task`)."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

_NAMED_THREADS = '''\
"""Python 3.11 keeps the names of its threads to itself; here the kernel is told."""

import ctypes
import threading

_PR_SET_NAME = 15
_prctl = ctypes.CDLL(None).prctl
_begin = threading.Thread._bootstrap_inner


def _named(thread):
    _prctl(_PR_SET_NAME, thread.name[:15].encode())
    _begin(thread)


threading.Thread._bootstrap_inner = _named
'''

Place = tuple[str, str]
"""A process and a thread of it, by what they are called; many of a kind have one name."""
CpuTimes = Counter[Place]
"""Nanoseconds."""


def environment(folder: Path) -> dict[str, str]:
    """Under it, Python processes tell the kernel what their threads are called."""
    (folder / "sitecustomize.py").write_text(_NAMED_THREADS)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


def process_names(processes: Iterable[psutil.Process], known: Mapping[str, str]) -> dict[int, str]:
    """Process id -> the first name whose pattern is found in its command line, else its program's name."""
    names = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            found = (name for name, pattern in known.items() if re.search(pattern, command))
            names[process.pid] = next(found, process.name())
    return names


def cpu_times(names: Mapping[int, str]) -> CpuTimes:
    """Of all threads that live. What has ended in between is not in it."""
    times: CpuTimes = Counter()
    for pid, process in names.items():
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                thread = (task / "comm").read_text().strip()
                times[process, _kind(thread)] += int((task / "schedstat").read_text().split()[0])
    return times


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _kind(thread: str) -> str:
    """Without the number in a pool; names that Python makes up count as one."""
    return re.sub(r"[-_]?\d+( \(.*)?$", "", thread)
