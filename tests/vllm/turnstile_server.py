"""A Turnstile that compiles and nothing else: its HTTP application over a real grammar tier, without Ray."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from deployments.http.tenants import Tenants
from grammar_workers.service.deployment import GrammarCompiler
from tests.deployments.applications import application
from tests.deployments.fakes import FakeReplica
from tests.redis_server import free_port
from tests.vllm.server import MODEL

API_KEY = "compile-for-me"


class _Handle:
    """`handle.options(...).method.remote(...)` of a deployment in this process."""

    def __init__(self, target: GrammarCompiler) -> None:
        self._target = target

    @property
    def handle(self) -> Any:
        return self

    def options(self, **_: Any) -> _Handle:
        return self

    def __getattr__(self, name: str) -> Any:
        return _Method(getattr(self._target, name))


class _Method:
    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


@contextlib.contextmanager
def turnstile_server(folder: Path, store: str) -> Iterator[tuple[str, uvicorn.Server]]:
    """Its URL, which asks for `API_KEY`, and the server: `should_exit` ends it early."""
    digest = hashlib.sha256(API_KEY.encode()).hexdigest()
    (folder / "keys.yaml").write_text(f"keys:\n- {{tenant: vllm, sha256: {digest}}}\n")
    compiler: Any = _Handle(GrammarCompiler(str(MODEL), store))
    app = application(
        compiler, FakeReplica(), tenants=Tenants.from_file(str(folder / "keys.yaml")), max_body_bytes=10_000
    )
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join(30)
