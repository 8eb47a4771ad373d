"""Fork server: loads the compiler once, and forks a compile process for each request of the pool (`CompilePool`).

    python -m grammar_workers.service.fork_server FD SETTINGS

A fork takes milliseconds. A new interpreter would need seconds to load the compiler. The processes share memory until
they write to it.

FD is the number of a SOCK_SEQPACKET socket to the pool. SETTINGS is the argument `settings` of `main` as JSON. First,
the server reports that it is ready. Then each message from the pool contains one end of a socket pair. The server forks
a compile process that uses this socket, and sends the process ID and a pidfd (descriptor that refers to the process) to
the pool. The pool uses the pidfd to kill the process and to detect its end, because process IDs are reused. The server
ends when the pool ends.
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
    """Load the compiler, then fork compile processes until the pool (the parent process) has ended.

    Args:
        descriptor: File descriptor of the socket to the pool.
        settings: Dictionary with these keys:

            - `target`: the "module:function" that loads the compiler, such as `worker.load_compiler`. It returns the
              fingerprint of the vocabulary and the compile function.
            - `arguments`: the keyword arguments of this function.
            - `memory_limit_mb`: memory limit of the server and of each compile process, in MiB.
            - `idle`: priority of the compile processes (see `CompilePool`).
            - `parent`: process ID of the pool.

    Returns:
        Exit code: 0, or 1 if the compiler cannot be loaded.
    """
    end_with(settings["parent"])  # while the compiler loads, the socket is not read
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
    """Raise RuntimeError if this process has threads, because a fork would lose them with the locks that they hold."""
    if len(os.listdir("/proc/self/task")) > 1:
        names = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
        raise RuntimeError(f"loading has started threads, so this process cannot be forked: {', '.join(names)}")


def _fork(pool: socket.socket, descriptor: int, compile_artifact: CompileFunction, idle: bool) -> None:
    """Fork a compile process, and send its process ID and pidfd, or the reason why it cannot be forked."""
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
    # Only this process reaps the child, so the process ID is not reused until then.
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
    """Remove compile processes that have ended from the process table. The pool detects their end by pidfds."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
