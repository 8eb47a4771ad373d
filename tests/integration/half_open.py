"""`python -m tests.integration.half_open PORT CONNECTIONS ADDRESSES KIND`: connections that send half a request.

They come from 127.0.0.2 and the addresses after it, and are renewed when they are cut. Prints how many are held when
all were tried once, and when standard input ends how many it has opened altogether.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
import socket
import sys
from asyncio.subprocess import PIPE

HALF_A_HEADER = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-slow"
HALF_A_BODY = (
    HALF_A_HEADER + b": 1\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n" + b" " * 40_000
)
KINDS = {"header": HALF_A_HEADER, "body": HALF_A_BODY}
AT_A_TIME = 200


def main() -> None:
    port, connections, addresses = map(int, sys.argv[1:4])
    sent = KINDS[sys.argv[4]]
    sources = itertools.cycle(f"127.0.0.{2 + number}" for number in range(addresses))
    poll = selectors.DefaultSelector()
    poll.register(sys.stdin, selectors.EVENT_READ)
    held, opened, told = 0, 0, False
    while True:
        for _ in range(min(AT_A_TIME, connections - held)):
            with contextlib.suppress(OSError):
                poll.register(_connect(port, next(sources)), selectors.EVENT_READ | selectors.EVENT_WRITE)
                held += 1
            opened += 1
        for key, events in poll.select(0 if held < connections else 0.1):
            if key.fileobj is sys.stdin:
                print(opened, flush=True)
                return
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if _is_cut(connection, sent if events & selectors.EVENT_WRITE else b""):
                poll.unregister(connection)
                connection.close()
                held -= 1
            elif events & selectors.EVENT_WRITE:
                poll.modify(connection, selectors.EVENT_READ)
        if not told and opened >= connections:
            told = True
            print(held, flush=True)


def _connect(port: int, source: str) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    # One port for connections of all addresses, or there would not be enough of them.
    connection.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    connection.bind((source, 0))
    with contextlib.suppress(BlockingIOError):
        connection.connect(("127.0.0.1", port))
    return connection


def _is_cut(connection: socket.socket, sent: bytes) -> bool:
    try:
        if sent:
            connection.send(sent)
            return False
        return not connection.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


class HalfOpen:
    """Runs the above from entering to leaving it; afterwards `opened` is how many connections there were."""

    def __init__(self, port: int, connections: int, *, addresses: int, kind: str) -> None:
        self.opened = 0
        # No more important to the machine than the workers of Ray, which are as nice.
        self._command = ["nice", "-n", "15", sys.executable, "-m", "tests.integration.half_open"]
        self._command += [str(port), str(connections), str(addresses), kind]

    async def __aenter__(self) -> HalfOpen:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        assert self._process.stdout is not None and (await self._process.stdout.readline()).strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        told, _error = await self._process.communicate(b"")
        self.opened = int(told)


if __name__ == "__main__":
    main()
