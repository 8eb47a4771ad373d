"""What the launcher refuses before it starts anything. (Real starts and stops: tests/integration.)"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from deployments.arguments import REPOSITORY


def launch(config: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deployments.launcher", str(config), "--port", str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        (REPOSITORY / "configs" / "local.yaml").read_text().replace("slots:", "slot:") + "aplications: []\n"
    )
    result = launch(config, 0)
    assert result.returncode == 2
    assert "unknown key `aplications`" in result.stderr


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = launch(REPOSITORY / "configs" / "local.yaml", port)
    assert result.returncode == 2
    assert f"port {port}" in result.stderr
