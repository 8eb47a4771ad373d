"""Loads the compiler once and forks a compile process whenever the pool asks.

    python -m grammar_workers.service.fork_server FD SETTINGS

A fork takes milliseconds where a fresh interpreter would load for seconds, and its memory is shared until it is written
to. FD is a socket of whole messages (SOCK_SEQPACKET): the server reports ready; each message of the pool then carries
the socket of a new compile process, and is answered with its process id and a pidfd, by which the pool kills it and
learns of its end: the pool is not its parent, and process ids are used again. The server ends with the pool.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from grammar_workers.gc_control import skip_what_exists
from grammar_workers.service.parent_death import end_with
from grammar_workers.service.worker import CompileFunction, answer_jobs

LONGEST_MESSAGE = 1 << 16


def main(descriptor: int, settings: dict[str, Any]) -> int:
    """Fork compile processes until the pool is gone; returns 1 if the compiler cannot be loaded.

    `settings`: `target` ("module:function" returning what `worker.load_compiler` does), its `arguments`,
    `memory_limit_mb`, of the server and of each compile process, `idle` (see `CompilePool`), and `parent`, the process
    id of the pool.
    """
    end_with(settings["parent"])  # the socket tells, too, but nobody listens to it while something loads
    pool = socket.socket(fileno=descriptor)
    limit = settings["memory_limit_mb"] << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        module, _, function = settings["target"].partition(":")
        fingerprint, compile_artifact = getattr(importlib.import_module(module), function)(**settings["arguments"])
        _check_threads()
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        pool.send(json.dumps({"status": "failed", "message": message[: LONGEST_MESSAGE // 8]}).encode())
        return 1
    skip_what_exists()
    try:
        pool.send(json.dumps({"status": "ready", "fingerprint": fingerprint}).encode())
        while True:
            asked, descriptors, _, _ = socket.recv_fds(pool, LONGEST_MESSAGE, 1)
            if not asked:
                return 0
            _fork(pool, descriptors[0], compile_artifact, settings["idle"])
    except ConnectionError:
        return 0


def _check_threads() -> None:
    """Raise RuntimeError if a fork would lose threads, and with them whatever they have locked."""
    if len(os.listdir("/proc/self/task")) > 1:
        names = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
        raise RuntimeError(f"loading has started threads, so this process cannot be forked: {', '.join(names)}")


def _fork(pool: socket.socket, descriptor: int, compile_artifact: CompileFunction, idle: bool) -> None:
    """One more compile process; says why not where there is none."""
    _reap()
    try:
        child = os.fork()
    except OSError as error:
        os.close(descriptor)
        pool.send(str(error).encode())
        return
    if not child:
        pool.close()
        _become_compile_process(descriptor, compile_artifact, idle)
    os.close(descriptor)
    # Nobody but this process takes the child off the list of processes, so its id is its own until then.
    pidfd = os.pidfd_open(child)
    try:
        socket.send_fds(pool, [str(child).encode()], [pidfd])
    finally:
        os.close(pidfd)


def _become_compile_process(descriptor: int, compile_artifact: CompileFunction, idle: bool) -> NoReturn:
    try:
        if idle:
            os.setsid()
        answer_jobs(Connection(descriptor), compile_artifact, idle)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _reap() -> None:
    """Take compile processes that have ended off the list; the pool knows by their pidfds."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
