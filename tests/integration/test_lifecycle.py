"""Starting, stopping, starting again: what `make serve` promises."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.integration.server import METRICS_DEADLINE_S, START_DEADLINE_S, Server
from tests.integration.stops import Signal, with_a_long_stream
from tests.integration.traffic import PERSON, structured

COMPILATIONS = "turnstile_grammar_compilations"
STORE_EVENTS = "turnstile_grammar_store_events"


def grammar_sources(server: Server, requests: int) -> list[str]:
    """Where a running server found the automaton of one schema, for requests that arrive together."""

    def ask(seed: int) -> str:
        body = structured(PERSON, seed=seed)
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
        assert response.status_code == 200, response.text
        return str(response.json()["grammar"]["source"])

    with ThreadPoolExecutor(requests) as threads:
        return list(threads.map(ask, range(requests)))


def compilations(server: Server) -> dict[str, list[float]]:
    """What each replica shows, by place."""
    return {kind: server.metric(COMPILATIONS, component=kind) for kind in ("grammar_compiler", "model_replica")}


def assert_compilations(server: Server, expected: dict[str, list[float]]) -> None:
    """Replicas export their metrics one after the other, some seconds late."""
    deadline = time.monotonic() + METRICS_DEADLINE_S
    while (shown := compilations(server)) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    assert shown == expected


@pytest.mark.long
def test_a_restarted_server_takes_the_automaton_from_the_store(tmp_path: Path) -> None:
    arguments = {"store": f"file://{tmp_path}", "replica": {"replicas": 2, "num_cpus": 0.1}}
    with Server(arguments) as server:
        # One that arrives late finds what the others have compiled: in the store, or in its own replica.
        assert {"compiled"} <= set(grammar_sources(server, 8)) <= {"compiled", "file", "process"}
        server.wait_metric(COMPILATIONS)
        assert_compilations(server, {"grammar_compiler": [1], "model_replica": [0, 0]})
        assert server.interrupt() == (0, [])
        assert server.log.splitlines()[-1] == "stopped cleanly"
    with Server(arguments) as server:
        assert "file" in grammar_sources(server, 8)
        server.wait_metric(STORE_EVENTS, tier="file", event="hits")
        assert_compilations(server, {"grammar_compiler": [0], "model_replica": [0, 0]})
        hurried = asyncio.run(with_a_long_stream(server, Signal(), Signal(after_s=1.5)))
        assert hurried.wrong(code=1) == [] and hurried.answers == {"cut": 1}
        assert server.log.splitlines()[-1].startswith("stopped; 1 open requests were cut")


def test_a_failed_start_ends_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")  # a model that nobody can load
    server = Server({"model": str(tmp_path)}, deadline_s=150)
    server.start()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(timeout=START_DEADLINE_S)
        assert server.process.poll() == 1, server.log
        assert "error: turnstile failed to start" in server.log and str(tmp_path) in server.log
    finally:
        server.end()
