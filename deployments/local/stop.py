"""The end of a local server: from the signal to the last process gone."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import ray
from ray import serve
from ray._common.utils import get_default_ray_temp_dir

from deployments.haproxy import admin

DEADLINE_S = 13.0
"""For what is left to do when no request is open any more."""
KILLED_S = 2.0
"""For what was killed to be gone."""
LAST_ANSWERS_S = 0.5
"""For HAProxy to refuse what has reached it."""
POLL_S = 0.25
TWICE_S = 1.0
"""A signal to a group of processes comes twice where one of them, such as make, passes it on."""


class StopSignals:
    """SIGINT and SIGTERM: the first sets `stop`, another one, not in the same second, `hurry`."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.hurry = threading.Event()
        self._first = math.inf

    def install(self) -> None:
        """Hear them, from now on alone; called by the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        now = time.monotonic()
        if now > self._first + TWICE_S:
            self.hurry.set()
        self._first = min(self._first, now)
        self.stop.set()


def finish_requests(progress: Callable[[str], None], hurry: threading.Event, *, drain_s: float) -> int:
    """Refuse new requests, and wait for those under way; how many are not done after `drain_s`, or when in a hurry."""
    admin.refuse_requests()
    deadline = time.monotonic() + drain_s
    while (left := admin.open_requests()) and time.monotonic() < deadline and not hurry.wait(POLL_S):
        progress(f"stopping: open requests may finish, {left} of them")
    return left


def stop_all(progress: Callable[[str], None], hurry: threading.Event, *, gracefully: bool) -> int:
    """Stop Serve and Ray, replicas first if `gracefully`; how many processes had to be killed after the deadline.

    What has been started of a Ray that is not there yet is killed at once, and does not count.
    """
    progress("stopping Serve and Ray")
    if not ray.is_initialized():
        _kill_all()
        return 0
    started = psutil.Process().children(recursive=True)
    deadline = time.monotonic() + DEADLINE_S
    worker = threading.Thread(target=_shut_down, args=(gracefully,), daemon=True)
    worker.start()
    while worker.is_alive() and time.monotonic() < deadline - KILLED_S and not hurry.is_set():
        worker.join(POLL_S)
    _, left = psutil.wait_procs(started, timeout=0 if hurry.is_set() else max(0.0, deadline - time.monotonic()))
    _kill(left)
    return len(left)


def remove_sessions() -> None:
    """Remove what the Rays of this process have written: logs, sockets."""
    folder = Path(get_default_ray_temp_dir())
    for session in folder.glob(f"session_*_{os.getpid()}"):
        shutil.rmtree(session, ignore_errors=True)
    latest = folder / "session_latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def _kill_all() -> None:
    """The processes that this one has started, also those that come while it does so."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        _kill(left)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=KILLED_S)


def _shut_down(gracefully: bool) -> None:
    """Whatever goes wrong here, the processes are looked after elsewhere."""
    with contextlib.suppress(Exception):
        for name in serve.status().applications if gracefully and ray.is_initialized() else ():
            serve.delete(name)
    admin.close_ports()
    time.sleep(LAST_ANSWERS_S)
    with contextlib.suppress(Exception):
        ray.shutdown()
