"""What the environment may say about HAProxy, and what HAProxy is started with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deployments.haproxy.configuration import UnknownConfiguration, hardened
from deployments.haproxy.settings import CONNECTIONS, HEALTH_PORT, HOSTS, PER_ADDRESS, TRUSTED_PROXIES, Settings
from tests.deployments.haproxy.processes import PROGRAM, HAProxy


def test_nothing_said() -> None:
    settings = Settings.from_environment({})
    assert settings.health_port is None
    assert settings.connections_per_address > 0 and settings.trusted_proxies == ()


def test_what_may_be_said() -> None:
    settings = Settings.from_environment(
        {HEALTH_PORT: "8002", PER_ADDRESS: "0", CONNECTIONS: "300", HOSTS: "a.example, [fd00::1]"}
        | {TRUSTED_PROXIES: "10.0.0.0/8,192.168.1.7 fd00::/8"}
    )
    assert settings == Settings(
        health_port=8002,
        connections=300,
        connections_per_address=0,
        trusted_proxies=("10.0.0.0/8", "192.168.1.7/32", "fd00::/8"),
        hosts=("a.example", "[fd00::1]"),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (HEALTH_PORT, "80000"),
        (HEALTH_PORT, "x"),
        (PER_ADDRESS, "-1"),
        (CONNECTIONS, "0"),
        (TRUSTED_PROXIES, "10.0.0.1/8"),
        (HOSTS, "a b; http-request"),
        (HOSTS, "a:8000"),
    ],
)
def test_what_may_not(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings.from_environment({name: value})


@pytest.mark.parametrize("files", [1024, 4096])
def test_the_limit_of_open_files_is_kept(tmp_path: Path, files: int) -> None:
    """HAProxy does not start with more connections than it can have files."""
    process = HAProxy(tmp_path / "node", [], Settings())
    try:
        process.start_program(files=files)
    finally:
        process.end()


def test_a_configuration_of_another_ray_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownConfiguration, match="frontend http_frontend"):
        hardened("# of Serve\nglobal\n    maxconn 1\ndefaults\n    mode http\n", Settings(), tmp_path)
    (tmp_path / "haproxy.cfg").write_text("global\n")
    refused = subprocess.run(
        [*PROGRAM, "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1 and "turnstile-haproxy: no section `defaults`" in refused.stderr
