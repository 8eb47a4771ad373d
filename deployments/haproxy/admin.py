"""Commands to the HAProxy processes of this machine, through admin sockets (Unix sockets) that Ray Serve configures.

Each Ray node on this machine has one HAProxy and one socket. The environment variable `RAY_SERVE_HAPROXY_SOCKET_PATH`
has a path `FOLDER/NAME`. The sockets are `FOLDER/*/NAME`. A socket without a running HAProxy is ignored.
"""

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
    """Make every HAProxy of this machine answer new requests with 503. Requests in progress continue.

    A HAProxy that does not respond is ignored. For each HAProxy, the function also writes the file `stopping.acl`
    (`STOPPING_FILE`). Because of this file, a HAProxy that Ray Serve starts later rejects requests, too. `OSError` is
    raised if the file cannot be written.
    """
    for path in _sockets():
        stopping = path.parent / STOPPING_FILE
        stopping.write_text(f"{STOPPING}\n")  # for the next HAProxy, if Serve starts one
        _command(path, f"add acl {stopping} {STOPPING}")


def open_requests() -> int:
    """Return the number of requests in progress in all HAProxy processes of this machine. 0: none, or no HAProxy."""
    return sum(_sessions(_command(path, "show stat -1 2 -1")) for path in _sockets())


def close_ports() -> None:
    """Make every HAProxy of this machine close its ports, finish the requests in progress, and exit.

    The function returns without waiting for the exits. A HAProxy that does not respond is ignored.
    """
    for path in _sockets():
        if (pid := re.search(r"^Pid: (\d+)$", _command(path, "show info"), re.MULTILINE)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid[1]), signal.SIGUSR1)


def _sessions(statistics: str) -> int:
    rows = csv.DictReader(statistics.removeprefix("# ").splitlines())
    return sum(int(row["scur"] or 0) for row in rows if row["mode"] == "http")


def _sockets() -> Iterator[Path]:
    """Yield the admin socket of each Ray node on this machine."""
    path = Path(os.environ.get(SOCKET, ""))
    return path.parent.glob(f"*/{path.name}") if path.name else iter(())


def _command(path: Path, command: str) -> str:
    """Return the response of HAProxy, which is empty if no HAProxy listens on the socket any more."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
        connection.sendall(f"{command}\n".encode())
        while part := connection.recv(1 << 16):
            answer += part
    return answer.decode()
