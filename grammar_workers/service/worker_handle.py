"""The pool's side of the fork server and of the compile processes that it forks: start them, ask them, kill them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from grammar_workers.service.fork_server import LONGEST_MESSAGE
from grammar_workers.service.worker import decode, encode

_TRANSFER_TIMEOUT_S = 30
_FORK_TIMEOUT_S = 30
_CPUCLOCK_SCHED = 2
_SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


class WorkerDiedError(Exception):
    """The process ended, or broke off a message."""


class WorkerStartError(RuntimeError):
    """A process did not become ready; the message says why."""


@contextlib.contextmanager
def _unless_it_died() -> Iterator[None]:
    """Has `WorkerDiedError` say what went wrong with a descriptor of the process."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerDiedError from error


class ForkServer:
    """A fresh interpreter that runs `fork_server`. Its methods may be called by any thread; it ends with the one that
    makes it.

    Not `multiprocessing`: its fork server runs the parent's main module again, which inside a Ray worker is Ray's own.
    It gets a process group of its own, so that an interactive Ctrl-C does not reach it; if `idle` a session, too.
    """

    def __init__(self, target: str, arguments: dict[str, Any], memory_limit_mb: int, idle: bool) -> None:
        settings = {
            "target": target,
            "arguments": arguments,
            "memory_limit_mb": memory_limit_mb,
            "idle": idle,
            "parent": os.getpid(),
        }
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "grammar_workers.service.fork_server"),
                    *(str(theirs.fileno()), json.dumps(settings)),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=idle,
                process_group=None if idle else 0,
                env={
                    **os.environ,
                    **_SINGLE_THREADED,
                    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._asking = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> str:
        """The fingerprint of the vocabulary it has loaded; raises `WorkerStartError`."""
        if not _readable(timeout_s, self._socket.fileno(), self._pidfd):
            raise WorkerStartError(f"the compiler was not loaded within {timeout_s:g} s")
        # Not the end of the file: a process that loads for the server may hold the other end for longer.
        if not _readable(0, self._socket.fileno()) or not (message := self._socket.recv(LONGEST_MESSAGE)):
            raise WorkerStartError("the fork server ended before it was ready")
        header = json.loads(message)
        if header["status"] != "ready":
            raise WorkerStartError(f"the fork server could not load the compiler: {header['message']}")
        return str(header["fingerprint"])

    def fork(self) -> WorkerProcess:
        """A new compile process. Raises `WorkerDiedError` when the server has ended or does not answer, and
        `WorkerStartError` when it cannot fork.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._asking, _unless_it_died():
                socket.send_fds(self._socket, [b"fork"], [theirs.fileno()])
                if not _readable(_FORK_TIMEOUT_S, self._socket.fileno()):
                    raise WorkerDiedError
                message, descriptors, _, _ = socket.recv_fds(self._socket, LONGEST_MESSAGE, 1)
            if not message:
                raise WorkerDiedError
            if not descriptors:
                raise WorkerStartError(f"a compile process could not be forked: {message.decode()}")
        except BaseException:
            ours.close()
            raise
        return WorkerProcess(int(message), descriptors[0], ours)

    def wait(self) -> None:
        """Returns when the process has ended."""
        self._process.wait()

    def kill(self) -> None:
        """End the process now; those that it has forked live on."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free what belongs to it."""
        self._process.kill()
        self._process.wait()
        with self._asking:
            self._socket.close()
            os.close(self._pidfd)


class WorkerProcess:
    """A compile process, by its pidfd and its socket. Used by one thread, except `kill` and `pid`."""

    def __init__(self, pid: int, pidfd: int, ours: socket.socket) -> None:
        os.set_inheritable(pidfd, False)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            # A process that stops in the middle of a message must not hold its minder for ever.
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TRANSFER_TIMEOUT_S, 0))
        self.pid = pid
        self.has_begun = False
        """Its last job; a process that has been killed may take some time to die, and jobs until then."""
        self._pidfd = pidfd
        self._connection = Connection(ours.detach())

    @property
    def alive(self) -> bool:
        return not _readable(0, self._pidfd)

    @property
    def cpu_seconds(self) -> float:
        """All that it has used; raises `WorkerDiedError`."""
        with _unless_it_died():
            return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)  # as clock_getcpuclockid(3) has it

    def wait_ready(self, timeout_s: float) -> None:
        """Raises `WorkerStartError`."""
        try:
            if not self._poll(timeout_s):
                raise WorkerStartError(f"a compile process was not ready within {timeout_s:g} s")
            self.answer()
        except WorkerDiedError:
            raise WorkerStartError("a compile process ended before it was ready") from None

    def ask(self, key: str, specification: dict[str, Any], tenant: str) -> None:
        """Give it a job; raises `WorkerDiedError`."""
        self.has_begun = False
        with _unless_it_died():
            self._connection.send_bytes(encode({"key": key, "specification": specification, "tenant": tenant}))

    def has_answered(self, timeout_s: float) -> bool:
        """Whether there is an answer within so long; raises `WorkerDiedError`."""
        deadline = time.monotonic() + timeout_s
        while self._poll(deadline - time.monotonic()):
            if self.has_begun:
                return True
            self.answer()
            self.has_begun = True
        return False

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The answer (header, artifact) to its job; raises `WorkerDiedError`."""
        with _unless_it_died():
            return decode(self._connection.recv_bytes())

    def _poll(self, timeout_s: float) -> bool:
        with _unless_it_died():
            # `Connection.poll` makes a selector each time.
            return _readable(max(0.0, timeout_s), self._connection.fileno())

    def kill(self) -> None:
        """End the process now, from any thread; whoever waits for its answer gets `WorkerDiedError`."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End the process, wait until it is gone with its memory, and free what belongs to it."""
        self.kill()
        _readable(None, self._pidfd)
        self._connection.close()
        os.close(self._pidfd)


def _readable(timeout_s: float | None, *descriptors: int) -> bool:
    """Whether one of these is readable within so long; a pidfd is when its process has ended."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
