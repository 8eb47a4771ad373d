"""Shutdown of a local server: handles signals, waits for open requests, and ends Serve, HAProxy and Ray."""

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

# Seconds for the shutdown after the last open request has ended.
DEADLINE_S = 13.0
# Seconds in which killed processes must end.
KILLED_S = 2.0
# Seconds for HAProxy to reject the requests that have already reached it.
LAST_ANSWERS_S = 0.5
POLL_S = 0.25
# Seconds in which a second signal is ignored: make passes on a signal that its whole process group receives.
TWICE_S = 1.0


class StopSignals:
    """Handlers of SIGINT and SIGTERM that set events for the shutdown.

    Attributes:
        stop: Event that the first signal sets. The server must then stop, but open requests may finish.
        hurry: Event that a signal sets more than one second (`TWICE_S`) after the first signal. The server must then
            stop at once.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.hurry = threading.Event()
        self._first = math.inf

    def install(self) -> None:
        """Replace this process's handlers of SIGINT and SIGTERM. Only the main thread may call this method.

        Call this method again after the start of Ray, because Ray installs handlers of its own.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        now = time.monotonic()
        if now > self._first + TWICE_S:
            self.hurry.set()
        self._first = min(self._first, now)
        self.stop.set()


def finish_requests(
    progress: Callable[[str], None], hurry: threading.Event, *, graceful_shutdown_timeout_s: float
) -> int:
    """Make HAProxy reject new requests, and wait until the open requests have ended.

    Args:
        progress: Function that is called repeatedly with a message. The message has the number of open requests.
        hurry: Event that ends the wait at once.
        graceful_shutdown_timeout_s: Maximum duration of the wait, in seconds.

    Returns:
        The number of requests that are still open at the end. 0: all requests have ended, or there is no HAProxy.
    """
    admin.refuse_requests()
    deadline = time.monotonic() + graceful_shutdown_timeout_s
    while (left := admin.open_requests()) and time.monotonic() < deadline and not hurry.wait(POLL_S):
        progress(f"stopping: open requests may finish, {left} of them")
    return left


def stop_all(progress: Callable[[str], None], hurry: threading.Event, *, gracefully: bool) -> int:
    """Stop Ray Serve, HAProxy and Ray, and kill the child processes that remain after 13 seconds (`DEADLINE_S`).

    If Ray has not finished its start, its processes are killed at once and are not counted.

    Args:
        progress: Function that is called with a message at the beginning.
        hurry: Event that ends the wait: all processes are then killed at once.
        gracefully: True: Ray Serve stops the replicas before Ray is shut down. False: Ray is shut down at once.

    Returns:
        The number of processes that had to be killed. 0: all processes have ended by themselves.
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
    """Remove the folders (with logs and sockets) of the Ray sessions that this process has started.

    Errors are ignored.
    """
    folder = Path(get_default_ray_temp_dir())
    for session in folder.glob(f"session_*_{os.getpid()}"):
        shutil.rmtree(session, ignore_errors=True)
    latest = folder / "session_latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def _kill_all() -> None:
    """Kill all processes that this process has started, and those that they start meanwhile."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        _kill(left)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=KILLED_S)


def _shut_down(gracefully: bool) -> None:
    """Shut down Serve, HAProxy and Ray. Errors are ignored, because `stop_all` kills the processes that are left."""
    with contextlib.suppress(Exception):
        for name in serve.status().applications if gracefully and ray.is_initialized() else ():
            serve.delete(name)
    admin.close_ports()
    time.sleep(LAST_ANSWERS_S)
    with contextlib.suppress(Exception):
        ray.shutdown()
