"""Starting, stopping, starting again: what `make serve` promises."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.integration.server import Server
from tests.integration.traffic import PERSON, structured


def grammar_source(server: Server) -> str:
    """Where a running server found the automaton of a schema."""
    body = structured(PERSON, temperature=0)
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    return str(response.json()["grammar"]["source"])


def test_a_restarted_server_takes_the_automaton_from_the_store(tmp_path: Path) -> None:
    arguments = {"store": f"file://{tmp_path}"}
    with Server(arguments) as server:
        assert grammar_source(server) == "compiled"
        assert grammar_source(server) != "compiled"
        started = time.monotonic()
        code, left = server.interrupt()
        assert time.monotonic() - started < 15
        assert (code, left) == (0, [])
        assert server.log.splitlines()[-1] == "stopped cleanly"
    with Server(arguments) as server:
        assert grammar_source(server) == "file"
        assert server.metric("turnstile_grammar_compilations", place="grammar_compiler") == 0


def test_a_failed_start_ends_with_its_reason() -> None:
    server = Server({"model": "no-such-owner/no-such-model"}, deadline_s=120)
    server.start()
    try:
        assert server.process.wait(timeout=180) == 1
        assert "error:" in server.log and "no-such-model" in server.log
    finally:
        server.__exit__(None, None, None)
