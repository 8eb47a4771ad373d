"""Handles by which the pool (`CompilePool`) starts, calls and kills the fork server and its compile processes."""

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
    """A fork server or compile process has ended, has sent an incomplete message, or does not respond."""


class WorkerStartError(RuntimeError):
    """A fork server or compile process has not become ready. The message has the reason."""


@contextlib.contextmanager
def _unless_it_died() -> Iterator[None]:
    """Convert errors on a descriptor of the process to `WorkerDiedError`."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise WorkerDiedError from error


class ForkServer:
    """Handle of a fork server: a new Python process that forks compile processes. The methods are thread-safe.

    The constructor starts the process. The process ends when the thread that created this object ends. It has a process
    group of its own (with `idle`, also a session), so that Ctrl-C in a terminal does not reach it. This class does not
    use `multiprocessing`, whose fork server would run the main module of the parent again (in a Ray worker, that of
    Ray).

    Args:
        target: "module:function" that loads the compiler (see `fork_server.main`).
        arguments: Keyword arguments of this function, as data that JSON can represent.
        memory_limit_mb: Memory limit of the fork server and of each compile process, in MiB.
        idle: True: compile processes only use CPU time that other processes leave. False: they have the nice value 3.
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

    def wait_ready(self, timeout_s: float) -> str:
        """Wait until the server has loaded the compiler, and return the vocabulary's fingerprint.

        Args:
            timeout_s: Longest wait, in seconds.

        Returns:
            The fingerprint of the vocabulary.

        Raises:
            WorkerStartError: The server has ended, has failed to load the compiler, or is not ready in time.
        """
        if not _readable(timeout_s, self._socket.fileno(), self._pidfd):
            raise WorkerStartError(f"the compiler was not loaded within {timeout_s:g} s")
        # The pidfd is checked, because a child process of the server may keep the other end of the socket open.
        if not _readable(0, self._socket.fileno()) or not (message := self._socket.recv(LONGEST_MESSAGE)):
            raise WorkerStartError("the fork server ended before it was ready")
        header = json.loads(message)
        if header["status"] != "ready":
            raise WorkerStartError(f"the fork server could not load the compiler: {header['message']}")
        return str(header["fingerprint"])

    def fork(self) -> WorkerProcess:
        """Return a new compile process, which may not be ready yet.

        Raises:
            WorkerDiedError: The server has ended, or does not respond within 30 seconds.
            WorkerStartError: The server cannot fork.
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
        """Block until the fork server has ended."""
        self._process.wait()

    def kill(self) -> None:
        """End the fork server now, without waiting. The compile processes that it has forked continue."""
        self._process.kill()

    def close(self) -> None:
        """End the fork server, wait for its end, and close its socket. The object cannot be used afterwards."""
        self._process.kill()
        self._process.wait()
        with self._asking:
            self._socket.close()
            os.close(self._pidfd)


class WorkerProcess:
    """Handle of a compile process. All calls must come from one thread, except `kill` and `pid`.

    Args:
        pid: Process ID.
        pidfd: File descriptor that refers to the process (see pidfd_open(2)). `close` closes it.
        ours: Socket to the process. `close` closes it.

    Attributes:
        pid: Process ID.
        has_begun: True if the process has begun the last job. `ask` sets it to False, `has_answered` to True.
    """

    def __init__(self, pid: int, pidfd: int, ours: socket.socket) -> None:
        os.set_inheritable(pidfd, False)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            # A process that stops in the middle of a message must not hold its minder for ever.
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TRANSFER_TIMEOUT_S, 0))
        self.pid = pid
        # True if the process has begun its last job. A killed process may accept jobs until it has died.
        self.has_begun = False
        self._pidfd = pidfd
        self._connection = Connection(ours.detach())

    @property
    def alive(self) -> bool:
        """True if the compile process has not ended."""
        return not _readable(0, self._pidfd)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the process has used since its start, in seconds. Raises `WorkerDiedError` if it has ended."""
        with _unless_it_died():
            return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)  # as clock_getcpuclockid(3) has it

    def wait_ready(self, timeout_s: float) -> None:
        """Block until the process is ready for jobs.

        Args:
            timeout_s: Longest wait, in seconds.

        Raises:
            WorkerStartError: The process has ended, or is not ready in time.
        """
        try:
            if not self._poll(timeout_s):
                raise WorkerStartError(f"a compile process was not ready within {timeout_s:g} s")
            self.answer()
        except WorkerDiedError:
            raise WorkerStartError("a compile process ended before it was ready") from None

    def ask(self, key: str, specification: dict[str, Any], tenant: str) -> None:
        """Send a job (compilation) to the process. The call does not wait for the response.

        `WorkerDiedError` is raised if the process has ended.

        Args:
            key: Grammar key.
            specification: Specification, or a `job` (specification with options).
            tenant: Tenant of the request.
        """
        self.has_begun = False
        with _unless_it_died():
            self._connection.send_bytes(encode({"key": key, "specification": specification, "tenant": tenant}))

    def has_answered(self, timeout_s: float) -> bool:
        """Wait for the response to the last job, and return whether it has arrived. `answer` then reads it.

        `WorkerDiedError` is raised if the process has ended.

        Args:
            timeout_s: Maximum time to wait, in seconds. 0: do not wait.

        Returns:
            True if the response has arrived, False if it has not arrived in time.
        """
        deadline = time.monotonic() + timeout_s
        while self._poll(deadline - time.monotonic()):
            if self.has_begun:
                return True
            self.answer()
            self.has_begun = True
        return False

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """Read the response to the last job, after `has_answered` has returned True.

        `WorkerDiedError` is raised if the process has ended.

        Returns:
            The header and the artifact (compiled grammar). The header is a dictionary with `status`, and for a failure
            also `error` or `message`. The artifact is b"" unless the status is `compiled`.
        """
        with _unless_it_died():
            return decode(self._connection.recv_bytes())

    def _poll(self, timeout_s: float) -> bool:
        with _unless_it_died():
            # `Connection.poll` makes a selector each time.
            return _readable(max(0.0, timeout_s), self._connection.fileno())

    def kill(self) -> None:
        """Kill the compile process, from any thread. A thread that waits for its response gets `WorkerDiedError`."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End the compile process, wait until its memory is free, and close its socket and descriptor."""
        self.kill()
        _readable(None, self._pidfd)
        self._connection.close()
        os.close(self._pidfd)


def _readable(timeout_s: float | None, *descriptors: int) -> bool:
    """Return whether a descriptor becomes readable in time. A pidfd is readable when its process has ended."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
