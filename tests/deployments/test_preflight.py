"""What a config names is checked before Ray starts, and each message says what to do."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from deployments.config_file import load_config
from deployments.local import preflight, server
from deployments.local import stop as local_stop
from deployments.shipped import REPOSITORY
from tests.deployments.wrong_configs import KEYS, messages

LOCAL = REPOSITORY / "configs" / "local.yaml"


def test_each_mistake_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    several = {"unknown engine"}
    for wrong, message, goes_on in messages(tmp_path):
        assert all(part in message for part in wrong.said), (wrong.name, message)
        assert goes_on == wrong.warning, (wrong.name, message)
        assert len(message.splitlines()) == 1 or wrong.name in several, (wrong.name, message)
        assert "secret" not in message


def test_a_certificate_is_looked_for_where_routers_have_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY", raising=False)
    config = load_config(LOCAL)
    config.http_options.ssl_certfile = "/no/certificate"
    assert [*preflight._file_problems(config)] == [
        "`http_options.ssl_certfile`: /no/certificate is no file that this user can read"
    ]


@pytest.mark.parametrize(("asked", "port", "lines"), [(None, 8123, 0), (8124, 8124, 1), (8123, 8123, 0)])
def test_the_port_of_the_config_counts_and_a_conflict_is_said(
    asked: int | None, port: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_check_port", lambda *_: None)
    config = load_config(LOCAL)
    config.http_options.port = 8123
    told: list[str] = []
    preflight.check_config(LOCAL, config, asked, None, told.append)
    assert config.http_options.port == port
    assert told == ["port 8124 (--port) takes the place of 8123 (`http_options.port` of the config)"] * lines


@pytest.mark.parametrize("port", [None, "8123"])
def test_make_serve_passes_the_port_only_if_one_is_given(port: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PORT"}
    given = [] if port is None else [f"PORT={port}"]
    command = ["make", "--dry-run", "--assume-old", ".venv/.installed", "serve", *given]
    shown = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    assert ("--port 8123" in shown) == (port is not None) and ("--port" in shown) == (port is not None)


def test_without_a_host_this_machine_alone_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_check_port", lambda *_: None)
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")  # as the launcher does
    written = yaml.safe_load(LOCAL.read_text())
    for host, told in ((None, False), ("0.0.0.0", True)):
        written["http_options"] = {} if host is None else {"host": host}
        (file := tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
        config = load_config(file)
        preflight.check_config(file, config, None, None, print)
        assert config.http_options.host == (host or "127.0.0.1")
        assert ("answers everybody" in server._greeting(config, None, 8081, "/logs")) == told


def test_the_command_to_try_has_the_key_where_keys_are_on(tmp_path: Path) -> None:
    config = load_config(LOCAL)
    assert "Authorization" not in server._greeting(config, None, 8081, "/logs")
    (tmp_path / "keys").write_text(KEYS)
    config.applications[0].args["router"]["api_keys"] = str(tmp_path / "keys")
    assert "-H 'Authorization: Bearer YOUR_API_KEY' " in server._greeting(config, None, 8081, "/logs")


def test_the_port_for_probes_is_named_if_there_is_one() -> None:
    config = load_config(LOCAL)
    assert "; for probes: http://127.0.0.1:8123/health" in server._greeting(config, 8123, 8081, "/logs")
    assert "for probes" not in server._greeting(config, None, 8081, "/logs")


def test_a_start_beside_another_ray_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "other_rays", lambda: [4711])
    message = str(server._ray_failure("(The current node timed out)"))
    assert "another Ray runs here (process 4711): stop its server first" in message


def test_a_ray_of_others_is_found(tmp_path: Path) -> None:
    """By its program's name, if no child of this process."""
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "raylet")
    shell = ["sh", "-c", f"{tmp_path}/raylet 60 >/dev/null 2>&1 & echo $!"]  # whose end leaves it to others
    pid = int(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)
    try:
        assert pid in preflight.other_rays()
    finally:
        os.kill(pid, 9)
    with subprocess.Popen([tmp_path / "raylet", "60"]) as own:
        assert own.pid not in preflight.other_rays()
        own.kill()


def test_sessions_of_this_process_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stop, "get_default_ray_temp_dir", lambda: str(tmp_path))
    ours = tmp_path / f"session_2026-01-01_{os.getpid()}"
    other = tmp_path / f"session_2026-01-01_1{os.getpid()}"
    for folder in (ours, other):
        (folder / "logs").mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to(ours)
    local_stop.remove_sessions()
    assert [path.name for path in tmp_path.iterdir()] == [other.name]


SERVES = """
import signal, time
from deployments.local.stop import StopSignals
from deployments.local.terminal import own_foreground
signals = StopSignals()
signals.install()
with own_foreground():
    print("ready", flush=True)
    while not signals.stop.wait(0.1):
        pass
    print("stopped cleanly", flush=True)
"""


def test_make_ends_well_by_ctrl_c(tmp_path: Path) -> None:
    """In a terminal, where both receive it."""
    (tmp_path / "program.py").write_text(SERVES)
    (tmp_path / "Makefile").write_text(f"serve:\n\t@exec {sys.executable} program.py\n")
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvp("make", ["make"])
    said = b""
    while b"ready" not in said:
        try:
            said += os.read(terminal, 1024)
        except OSError:  # no program holds the terminal any more
            raise AssertionError(said.decode()) from None
    os.write(terminal, b"\x03")
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
