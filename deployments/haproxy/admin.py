"""What a running HAProxy of this machine is told and asked, on the socket that Serve gives it."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from deployments.haproxy.configuration import STOPPING, STOPPING_FILE

SOCKET = "RAY_SERVE_HAPROXY_SOCKET_PATH"
TIMEOUT_S = 2.0


def refuse_requests() -> None:
    """Every request that comes from now on is answered with 503; those under way go on."""
    for path in _sockets():
        stopping = path.parent / STOPPING_FILE
        stopping.write_text(f"{STOPPING}\n")  # for the next HAProxy, if Serve starts one
        _command(path, f"add acl {stopping} {STOPPING}")


def open_requests() -> int:
    """How many requests are with a router, or on their way back from it."""
    return sum(_sessions(_command(path, "show stat -1 2 -1")) for path in _sockets())


def close_ports() -> None:
    """HAProxy takes no connection any more, answers what it has, and ends."""
    for path in _sockets():
        if (pid := re.search(r"^Pid: (\d+)$", _command(path, "show info"), re.MULTILINE)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid[1]), signal.SIGUSR1)


def _sessions(statistics: str) -> int:
    rows = csv.DictReader(statistics.removeprefix("# ").splitlines())
    return sum(int(row["scur"] or 0) for row in rows if row["mode"] == "http")


def _sockets() -> Iterator[Path]:
    """One for each node that runs here."""
    path = Path(os.environ.get(SOCKET, ""))
    return path.parent.glob(f"*/{path.name}") if path.name else iter(())


def _command(path: Path, command: str) -> str:
    """The answer; empty where no HAProxy listens any more."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
        connection.sendall(f"{command}\n".encode())
        while part := connection.recv(1 << 16):
            answer += part
    return answer.decode()
