"""A TCP relay in front of a Redis: a slow network, a Service that moves on to another server, the end of TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from types import TracebackType


class RedisRelay:
    """Listens on a free port; connections go to the `target` port of their time, answers come `delay_s` later."""

    def __init__(self, target: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.delay_s = 0.0
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        scheme = "redis" if self._tls is None else "rediss"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # also those of TLS: a client that trusts no such certificate
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self.target))
            self._connections += [client, server]
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
            self._pump(server, client, answers=True)
        client.close()

    def _pump(self, source: socket.socket, sink: socket.socket, *, answers: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers:
                    time.sleep(self.delay_s)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> RedisRelay:
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()
