"""The pool's side of one worker process: start it, ask it, kill it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from grammar_workers.compile_process import decode, encode

_TRANSFER_TIMEOUT_S = 30
_SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


class WorkerDiedError(Exception):
    """The process ended, or broke off a message."""


class WorkerTimeoutError(Exception):
    """The process did not answer in time; it is still running."""


class WorkerStartError(RuntimeError):
    """The process did not become ready; the message says why."""


class WorkerProcess:
    """A fresh interpreter that runs `compile_process`. Used by one thread, except `kill` and `pid`.

    Not `multiprocessing.Process`: its spawn method runs the parent's main module again, which inside a Ray worker is
    Ray's own. The child gets a session of its own, so that an interactive Ctrl-C does not reach it.
    """

    def __init__(self, target: str, arguments: dict[str, Any], memory_limit_mb: int) -> None:
        settings = {"target": target, "arguments": arguments, "memory_limit_mb": memory_limit_mb}
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                # A process that stops in the middle of a message must not hold its minder for ever.
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _TRANSFER_TIMEOUT_S, 0))
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "grammar_workers.compile_process"),
                    *(str(theirs.fileno()), json.dumps(settings)),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={
                    **os.environ,
                    **_SINGLE_THREADED,
                    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
            self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, timeout_s: float) -> str:
        """The fingerprint of the vocabulary it has loaded; raises `WorkerStartError`."""
        try:
            header, _ = self._receive(timeout_s)
        except WorkerTimeoutError:
            raise WorkerStartError(f"a compile process was not ready within {timeout_s:g} s") from None
        except WorkerDiedError:
            raise WorkerStartError("a compile process ended before it was ready") from None
        if header["status"] != "ready":
            raise WorkerStartError(f"a compile process could not load the compiler: {header['message']}")
        return str(header["fingerprint"])

    def ask(
        self, key: str, specification: dict[str, Any], tenant: str, timeout_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """The answer (header, artifact) to one job; raises `WorkerDiedError` or `WorkerTimeoutError`."""
        try:
            self._connection.send_bytes(encode({"key": key, "specification": specification, "tenant": tenant}))
        except OSError as error:
            raise WorkerDiedError from error
        return self._receive(timeout_s)

    def kill(self) -> None:
        """End the process now, from any thread; whoever waits for its answer gets `WorkerDiedError`."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free what belongs to it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + timeout_s
        try:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                raise WorkerTimeoutError
            return decode(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerDiedError from error
