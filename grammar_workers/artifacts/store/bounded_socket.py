"""Sockets on which a whole call has one deadline and a largest reply; redis-py's timeout is for each `recv`."""

from __future__ import annotations

import threading
import time
from typing import Any


class Allowance(threading.local):
    """Seconds and bytes that the call of this thread may still take."""

    ends = 0.0
    bytes_left = 0

    def begin(self, seconds: float, most_bytes: int) -> None:
        self.ends = time.monotonic() + seconds
        self.bytes_left = most_bytes


class BoundedSocket:
    """A connected socket within an allowance: `TimeoutError` after the deadline, `OSError` behind the last byte."""

    def __init__(self, connected: Any, allowance: Allowance) -> None:
        self._socket = connected
        self._allowance = allowance
        self._timeout = connected.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        """Within the allowance; 0 looks at what is there."""
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        self._wait()
        data: bytes = self._socket.recv(size)
        self._take(len(data))
        return data

    def recv_into(self, buffer: Any, *arguments: int) -> int:
        self._wait()
        size: int = self._socket.recv_into(buffer, *arguments)
        self._take(size)
        return size

    def sendall(self, data: bytes) -> None:
        self._wait()
        self._socket.sendall(data)

    def _wait(self) -> None:
        left = self._allowance.ends - time.monotonic()
        if self._timeout != 0 and left <= 0:
            raise TimeoutError("the call has taken too long")
        self._socket.settimeout(left if self._timeout is None else min(left, self._timeout))

    def _take(self, size: int) -> None:
        self._allowance.bytes_left -= size
        if self._allowance.bytes_left < 0:
            raise OSError("the reply is too large")


def bounded(kind: type, allowance: Allowance) -> type:
    """A class of connections as `kind`, one of redis-py's, within an allowance."""

    def connect(self: Any) -> BoundedSocket:
        return BoundedSocket(kind._connect(self), allowance)  # type: ignore[attr-defined]

    return type(f"Bounded{kind.__name__}", (kind,), {"_connect": connect})
