"""What the plugin says in vLLM's log when an engine starts, by vLLM's own configuration."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config.structured_outputs import StructuredOutputsConfig

from deployments.vllm import installation


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Whether vLLM's loggers hand on to the root depends on what is imported first."""
    monkeypatch.setattr(installation.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(installation.logger, "propagate", False)
    return caplog


class Clients:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, vllm_config: Any) -> Clients:
        self.calls.append("start")
        return self

    def wait_ready(self) -> None:
        self.calls.append("wait")


def started(backend: dict[str, Any]) -> list[str]:
    """What became of the compilers when an engine with this backend started."""
    clients: Any = Clients()

    class Engine:
        def __init__(self, vllm_config: Any) -> None:
            clients.calls.append("engine")

    installation._wrap_start(Engine, clients)
    Engine(SimpleNamespace(structured_outputs_config=StructuredOutputsConfig(**backend)))
    return list(clients.calls)


@pytest.mark.parametrize(("backend", "name"), [({}, "auto"), ({"backend": "xgrammar"}, "xgrammar")])
def test_who_forgets_the_flag_is_told_it(backend: dict[str, Any], name: str, log: pytest.LogCaptureFixture) -> None:
    assert started(backend) == ["engine"]
    (record,) = log.records
    assert record.levelno == logging.WARNING
    said = record.getMessage()
    assert f"backend is {name}." in said and "Turnstile makes no masks" in said
    assert said.endswith("""--structured-outputs-config '{"backend": "outlines"}'""")


def test_with_the_flag_nothing_is_warned_about(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.metrics, "export", lambda: None)
    assert started({"backend": "outlines"}) == ["start", "engine", "wait"]
    assert log.records == []


WORKER = """
import sys
from deployments.vllm.plugin import register

register()
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.worker_base

print([name for name in sys.modules if name.startswith(("deployments.vllm.installation", "grammar_workers"))])
"""


def test_a_worker_gets_no_masks() -> None:
    """vLLM loads the plugin there, too; what a worker imports of vLLM has no engine."""
    settings = {**os.environ, "TURNSTILE_VLLM": "1"}
    done = subprocess.run([sys.executable, "-c", WORKER], env=settings, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
