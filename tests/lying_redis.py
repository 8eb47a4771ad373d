"""A server in a Redis' place that hangs or lies, in each of the ways of `WAYS`."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from grammar_workers.artifacts import artifact

Command = list[bytes]
Way = Callable[[Command], Iterable[bytes] | None]
"""What a command is answered with, piece by piece; None: nothing, for ever."""

DRIP_S = 0.02
OK, NULL = b"+OK\r\n", b"$-1\r\n"
PIECE = b"x" * (1 << 16)
SOMEBODY = b"0123456789abcdef0123456789abcdef"


def _drip(command: Command) -> Iterator[bytes]:
    yield b"$1000000\r\n"
    while True:
        time.sleep(DRIP_S)
        yield b"x"


def _error(text: str) -> Way:
    return lambda command: [f"-{text}\r\n".encode()]


def _dripped_error(command: Command) -> Iterator[bytes]:
    for byte in b"-ERR " + b"x" * 10:
        time.sleep(DRIP_S)
        yield bytes([byte])
    yield b"\r\n"


def _others_artifacts(command: Command) -> Iterable[bytes]:
    """It stores nothing, and has something under every name."""
    if command[0] == b"GETRANGE":
        data = artifact.pack(secrets.token_bytes(5_000_000), key=secrets.token_hex(32), fingerprint="ab12")
        return [b"$%d\r\n%b\r\n" % (len(data), data)]
    return [b":1\r\n" if command[0] in (b"DEL", b"EVAL") else OK]


def _forgetful(command: Command) -> Iterable[bytes]:
    """No lie, but nothing is kept."""
    return [
        {b"GETRANGE": b"$0\r\n\r\n", b"GET": NULL, b"PTTL": b":-2\r\n", b"SET": OK, b"INFO": b"$0\r\n\r\n"}.get(
            command[0], b":1\r\n"
        )
    ]


def _null_locks(command: Command) -> Iterable[bytes]:
    """Nobody gets a lock, though there is none."""
    return [{b"GETRANGE": b"$0\r\n\r\n", b"PTTL": b":-2\r\n", b"EVAL": b":0\r\n"}.get(command[0], NULL)]


def _locks_without_end(command: Command) -> Iterable[bytes]:
    """Somebody has had every lock for ever, and will for an hour."""
    held = b"$%d\r\n%b\r\n" % (len(SOMEBODY), SOMEBODY)
    return [{b"GETRANGE": b"$0\r\n\r\n", b"PTTL": b":-1\r\n", b"GET": held, b"EVAL": b":0\r\n"}.get(command[0], NULL)]


HONEST = "forgetful"
WAYS: dict[str, Way] = {
    HONEST: _forgetful,
    "silence": lambda command: None,
    "drip": _drip,
    "dripped error": _dripped_error,
    "endless reply": lambda command: itertools.chain([b"$999999999999\r\n"], itertools.repeat(PIECE)),
    "endless line": lambda command: itertools.chain([b"+"], itertools.repeat(PIECE)),
    "endless list": lambda command: itertools.chain([b"*999999999\r\n"], itertools.repeat(b":1\r\n" * 4096)),
    "nested lists": lambda command: itertools.repeat(b"*1\r\n" * 4096),
    "garbage": lambda command: [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    "MOVED": _error("MOVED 3999 127.0.0.1:6381"),
    "READONLY": _error("READONLY You can't write against a read only replica."),
    "OOM": _error("OOM command not allowed when used memory > 'maxmemory'."),
    "NOAUTH": _error("NOAUTH Authentication required."),
    "LOADING": _error("LOADING Redis is loading the dataset in memory"),
    "null": lambda command: [NULL],
    "others' artifacts": _others_artifacts,
    "null locks": _null_locks,
    "locks without end": _locks_without_end,
}
FROM_THE_START = ("silence", "drip", "garbage", "NOAUTH", "LOADING")
"""So answered is also what a client says when it connects."""


class LyingRedis:
    """Listens on a free port, or on `port`; `way` may change."""

    def __init__(self, way: str, *, port: int = 0) -> None:
        self.way = way
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as sent:
            while header := sent.readline():
                command = [sent.read(int(sent.readline()[1:]) + 2)[:-2] for _ in range(int(header[1:]))]
                answer = self._answer(command)
                if answer is None:
                    continue
                for piece in answer:
                    connection.sendall(piece)
        with contextlib.suppress(OSError):
            connection.close()

    def _answer(self, command: Command) -> Iterable[bytes] | None:
        command[0] = command[0].upper()
        if self.way not in FROM_THE_START:
            if command[0] == b"HELLO":
                return [b"%1\r\n+proto\r\n:3\r\n"]
            if command[0] in (b"CLIENT", b"SELECT", b"AUTH"):
                return [OK]
        return WAYS[self.way](command)

    def __enter__(self) -> LyingRedis:
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
