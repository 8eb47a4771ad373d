"""A stand-in for the compiler inside the pool's processes: specifications say how to behave."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from grammar_workers.artifacts import artifact
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.service.child_call import call_in_child
from grammar_workers.service.pool import CompilePool
from grammar_workers.service.worker import CompileFunction

FINGERPRINT = "fa4e"


def load(failure: str | None = None, starts: str | None = None, **unused: Any) -> tuple[str, CompileFunction]:
    """`failure`: raise it. `starts`: a folder that gets a file named after each process that loads."""
    if failure == "exit":
        os._exit(3)
    if failure == "hang":
        call_in_child(time.sleep, 600)
    if failure == "threads":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return FINGERPRINT, behave
    if failure is not None:
        raise OSError(failure)
    if starts is not None:
        Path(starts, str(os.getpid())).touch()
    return FINGERPRINT, behave


def load_obedient(**arguments: Any) -> tuple[str, CompileFunction]:
    """Takes specifications like the real one's: `[` is refused, everything else compiles."""

    def compile_artifact(key: str, specification: dict[str, Any], tenant: str) -> bytes:
        return behave(key, {"do": "refuse" if specification["pattern"] == "[" else "nothing"}, tenant)

    return FINGERPRINT, compile_artifact


def behave(key: str, specification: dict[str, Any], tenant: str = "") -> bytes:
    if "log" in specification:
        with open(specification["log"], "a") as log:
            log.write(f"{specification.get('line', os.getpid())}\n")
    match specification["do"]:
        case "sleep":
            time.sleep(specification["seconds"])
        case "wait":
            while not Path(specification["until"]).exists():
                time.sleep(0.01)
        case "spin":
            while "until" not in specification or not Path(specification["until"]).exists():
                pass
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "allocate":
            data = bytearray(specification["bytes"])
            data[-1] = 1
        case "die":
            os._exit(1)
        case "die once":
            if not Path(specification["trace"]).exists():
                Path(specification["trace"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        case "refuse":
            raise UnsatisfiableError("nothing matches", pointer="#/a", position=3)
        case "break":
            raise KeyError("a bug")
        case "recurse":
            behave(key, specification, tenant)  # Python 3.13.0 does not count calls that leave arguments out
        case "nice":
            return f"{os.nice(0)} {os.sched_getscheduler(0)}".encode()
        case "environment":
            return f"{os.getppid()} {os.getsid(0)} {os.environ['CUDA_VISIBLE_DEVICES']!r}".encode()
    details = {"owner": tenant, "compile_seconds": 0.5, "automaton_states": 7}
    return artifact.pack(b"payload", key=key, fingerprint=FINGERPRINT, notes=["a note"], details=details)


def worker_pids(pool: CompilePool) -> list[int]:
    """The process ids of the pool's compile processes."""
    return [worker.pid for worker in list(pool._workers.values())]


def server_pid(pool: CompilePool) -> int | None:
    """The process id of the pool's fork server, if there is one now."""
    server = pool._server
    return None if server is None else server._process.pid


def forked(pool: CompilePool) -> set[int]:
    """The process ids of the pool's fork server's children that have not ended."""
    found = set()
    for child in psutil.Process(server_pid(pool)).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just been reaped
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found
