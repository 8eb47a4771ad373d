"""Sockets with one deadline and one maximum reply size for a whole call of redis-py.

redis-py itself has a timeout for each `recv` only.
"""

from __future__ import annotations

import threading
import time
from typing import Any


class Allowance(threading.local):
    """Time and number of bytes that the current call of this thread may still use. Each thread has its own values.

    Attributes:
        ends: Deadline of the call, in seconds of `time.monotonic`.
        bytes_left: Number of bytes that may still be received. Negative after too many.
    """

    ends = 0.0
    bytes_left = 0

    def begin(self, seconds: float, most_bytes: int) -> None:
        """Begin a new call in this thread: set its deadline and its maximum number of received bytes.

        Args:
            seconds: Maximum duration of the call from now on, in seconds.
            most_bytes: Maximum number of bytes that the call may receive.
        """
        self.ends = time.monotonic() + seconds
        self.bytes_left = most_bytes


class BoundedSocket:
    """Connected socket whose calls share one deadline and one maximum number of received bytes.

    A call is one call of redis-py, which sends and receives several times. `recv`, `recv_into` and `sendall` raise
    TimeoutError after the deadline. `recv` and `recv_into` raise OSError if more bytes than allowed have arrived.

    Args:
        connected: Connected socket. Methods that this class does not define are called on `connected`.
        allowance: Deadline and remaining number of bytes of the current call.
    """

    def __init__(self, connected: Any, allowance: Allowance) -> None:
        self._socket = connected
        self._allowance = allowance
        self._timeout = connected.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of each operation. The deadline of the whole call still applies, except with timeout 0.

        Args:
            seconds: Timeout in seconds. 0 does not wait, and None waits until the deadline of the call.
        """
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        """Receive bytes.

        Raises TimeoutError after the deadline or the timeout, and OSError if the call has received too many bytes.

        Args:
            size: Maximum number of bytes.

        Returns:
            The received bytes. Empty if the peer has closed the connection.
        """
        self._wait()
        data: bytes = self._socket.recv(size)
        self._take(len(data))
        return data

    def recv_into(self, buffer: Any, *arguments: int) -> int:
        """Receive bytes into `buffer`.

        Raises TimeoutError after the deadline or the timeout, and OSError if the call has received too many bytes.

        Args:
            buffer: Writable buffer, which is filled from its beginning.
            arguments: Maximum number of bytes and flags, as in `socket.recv_into`.

        Returns:
            The number of received bytes. 0 if the peer has closed the connection.
        """
        self._wait()
        size: int = self._socket.recv_into(buffer, *arguments)
        self._take(size)
        return size

    def sendall(self, data: bytes) -> None:
        """Send all bytes of `data`. TimeoutError is raised after the deadline or the timeout."""
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
    """Return a class of connections whose sockets have one deadline and one maximum reply size for a whole call.

    Args:
        kind: Class of connections of redis-py.
        allowance: Deadline and remaining number of bytes of the current call.

    Returns:
        A subclass of `kind` whose connections use a `BoundedSocket`.
    """

    def connect(self: Any) -> BoundedSocket:
        return BoundedSocket(kind._connect(self), allowance)  # type: ignore[attr-defined]

    return type(f"Bounded{kind.__name__}", (kind,), {"_connect": connect})
