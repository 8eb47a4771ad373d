"""A server to ask: the HTTP application over the fake tiers, behind a real socket."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from deployments.cli.main import main
from deployments.http.tenants import ApiKey, Tenants
from tests.deployments.applications import application
from tests.deployments.fakes import FakeCompiler, FakeReplica

API_KEY = "secret"
API_KEY_SHA256 = hashlib.sha256(API_KEY.encode()).hexdigest()

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `turnstile` in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def _serve(compiler: FakeCompiler, replica: FakeReplica, tenants: Tenants) -> Iterator[str]:
    app = application(compiler, replica, tenants=tenants)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def url(compiler: FakeCompiler, replica: FakeReplica) -> Iterator[str]:
    yield from _serve(compiler, replica, Tenants())


@pytest.fixture
def closed_url(compiler: FakeCompiler, replica: FakeReplica) -> Iterator[str]:
    """A server that wants `API_KEY`."""
    yield from _serve(compiler, replica, Tenants([ApiKey(tenant="tests", sha256=API_KEY_SHA256)]))


READY: dict[str, Any] = {
    "status": "ready",
    "source": "compiled",
    "notes": [],
    "automaton_states": 1234,
    "artifact_bytes": 5678,
    "compile_seconds": 0.25,
}
REFUSED: dict[str, Any] = {
    "status": "refused",
    "error": {
        "code": "unsupported_grammar",
        "message": "uniqueItems is supported for listed values",
        "pointer": "/properties/a/uniqueItems",
        "position": None,
    },
}
