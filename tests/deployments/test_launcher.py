"""What the launcher refuses before it starts anything. (Real starts and stops: tests/integration.)"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray.serve._private import constants

from deployments.cli.arguments import UsageFailure
from deployments.cli.main import main
from deployments.local import launcher, preflight, server
from deployments.local.launcher import environment
from deployments.shipped import REPOSITORY
from tests.redis_server import free_port

Refused = Callable[[Path, int], str]


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text((REPOSITORY / "configs" / "local.yaml").read_text() + "aplications: []\n")
    command = [sys.executable, "-m", "deployments.local.launcher", str(config), "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)
    assert result.returncode == 2
    assert "unknown key `aplications`" in result.stderr


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Serves in this process, in which nothing may start. Returns what is printed on stderr."""

    def start(*_: Any) -> None:
        raise AssertionError("it was not refused")

    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(server.StopSignals, "install", lambda _: None)
    monkeypatch.setattr(server, "compile_logged", start)
    monkeypatch.setattr(server, "_serve", start)

    def refused(config: Path, port: int) -> str:
        options = Namespace(port=port, metrics_port=None, deadline=60, model=None, engine=None)
        assert server.serve_locally(config, options) == 2
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("model: /no/such/model", "`model`"),
        (
            "model: models/turnstile-tiny\n      replica: {engine: {draft_model: ./none}}",
            "`replica.engine.draft_model`",
        ),
    ],
)
def test_a_model_of_the_config_that_is_not_there_is_named_before_ray_starts(
    tmp_path: Path, refused: Refused, line: str, place: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "applications:\n  - name: turnstile\n    import_path: deployments.app:build_app\n    args:\n      " + line
    )
    error = refused(config, 0)
    assert error.startswith(f"error: {config}: `applications.0.args`: {place}: there is no folder ")
    assert len(error.splitlines()) == 1 and "Hugging Face id is written" in error


def test_a_port_in_use_is_named(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refused(REPOSITORY / "configs" / "local.yaml", port)


@pytest.mark.parametrize("port", [80_000, -1])
def test_a_port_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], port: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "local", "--port", str(port)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: argument --port: ") and len(error.splitlines()) == 1


def test_a_ray_that_does_not_start_is_the_reason() -> None:
    program = """
import sys, pathlib, ray
from argparse import Namespace
from deployments.local.server import serve_locally
def fail(**settings): raise TimeoutError("the raylet did not answer")
ray.init = fail
config = pathlib.Path("configs/local.yaml")
options = Namespace(port=0, metrics_port=None, deadline=60, model=None, engine=None)
sys.exit(serve_locally(config, options))
"""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)
    assert result.returncode == 1
    # A message says so where another Ray runs beside this test.
    assert result.stderr.startswith("error: Ray did not start") and "the raylet did not answer" in result.stderr


RAY_HANGS = """
import pathlib, signal, subprocess, sys, time, ray
from argparse import Namespace
from deployments.local.server import serve_locally
def hang(**settings):
    child = subprocess.Popen(["sleep", "600"])
    print("Ray hangs beside", child.pid, flush=True)
    time.sleep(600)
ray.init = hang
config = pathlib.Path("configs/local.yaml")
options = Namespace(port=0, metrics_port=None, deadline=float(sys.argv[1]), model=None, engine=None)
sys.exit(serve_locally(config, options))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (None, 1)])
def test_a_signal_and_the_deadline_are_heard_while_ray_starts(number: signal.Signals | None, code: int) -> None:
    """And nothing is left of what it had started."""
    deadline_s = "600" if number is not None else "5"
    command = [sys.executable, "-c", RAY_HANGS, deadline_s]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ray hangs"):
                child = psutil.Process(int(line.split()[-1]))
                if number is not None:
                    process.send_signal(number)
                break
        rest, error = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    if number is None:
        assert error.startswith("error: Ray did not start within 5 s")
    else:
        assert rest.endswith("stopped cleanly\n")


def test_kernels_are_compiled_while_the_server_starts_and_not_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    begun = threading.Event()

    def compiling(log: Any, stopped: Any) -> None:
        begun.set()
        while not stopped():
            time.sleep(0.01)
        told.append("compiler ends")

    def serving(*arguments: Any, **settings: Any) -> int:
        assert begun.wait(60)
        told.append("server ends")
        return 7

    monkeypatch.setattr(server, "compile_logged", compiling)
    monkeypatch.setattr(server, "_serve", serving)
    monkeypatch.setattr(server.StopSignals, "install", lambda self: None)
    options = SimpleNamespace(model=None, engine=None, port=free_port(), metrics_port=free_port(), deadline=60)
    assert server.serve_locally(REPOSITORY / "configs" / "local.yaml", options) == 7  # type: ignore[arg-type]
    assert told == ["server ends", "compiler ends"]


def test_servers_on_one_machine_share_no_port(tmp_path: Path) -> None:
    """Serve has a fixed number for each; what another server answers there would pass for our own answer."""
    fixed = {name for name, value in vars(constants).items() if name.endswith("_PORT") and isinstance(value, int)}
    ours = environment(tmp_path)
    assert {name for name in fixed if name.startswith("RAY_SERVE_")} <= set(ours)
    ports = [ours[name] for name in ours if name.endswith("_PORT")]
    assert len(set(ports)) == len(ports)


def test_ports_that_somebody_uses_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in the middle of those chosen first: for probes, not the first of all."""
    chosen = iter((26_000, 26_000, 26_200))
    monkeypatch.setattr("random.randrange", lambda *_: next(chosen))
    bound: list[int] = []

    # No real ports: anybody on this machine may use them.
    class Socket(socket.socket):
        def bind(self, address: Any) -> None:
            bound.append(address[1])
            if address[1] == 26_004:
                raise OSError("in use")

    monkeypatch.setattr(launcher.socket, "socket", Socket)
    assert launcher._free_ports() == 26_200
    assert bound == [*range(26_000, 26_005)] * 2 + [*range(26_200, 26_400)]


def test_the_metrics_port_is_the_usual_one_or_a_free_one_or_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(preflight, "METRICS_PORT", port)
        assert preflight.free_metrics_port(None) not in (0, port)
        with pytest.raises(UsageFailure, match=f"port {port} .*--metrics-port"):
            preflight.free_metrics_port(port)
    assert preflight.free_metrics_port(None) == preflight.free_metrics_port(port) == port


def test_what_takes_long_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REPEAT_S", 0.01)
    progress = server.Progress()
    told = threading.Event()
    monkeypatch.setattr(
        "builtins.print", lambda line, **_: (lines.append(line), told.set() if "still" in line else None)
    )
    lines: list[str] = []
    with progress.repeating():
        progress("starting a local Ray")
        assert told.wait(30)
    assert lines[0].endswith("s  starting a local Ray") and lines[1].endswith("s  still starting a local Ray")


def test_progress_names_the_deployments_or_what_is_being_built() -> None:
    told: list[str] = []
    for deployments in ({}, {"Router": "HEALTHY", "GrammarCompiler": "UPDATING"}):
        states = {name: SimpleNamespace(status=status) for name, status in deployments.items()}
        application: Any = SimpleNamespace(status="DEPLOYING", deployments=states)
        server._check("turnstile", application, told.append)  # type: ignore[arg-type]
    assert told == ["building turnstile", "GrammarCompiler starting, Router ready"]
