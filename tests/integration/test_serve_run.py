"""`serve run configs/local.yaml`, which the file itself names: Serve's own command instead of the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from deployments.local.launcher import environment
from deployments.shipped import REPOSITORY
from tests.integration.traffic import PERSON, check, structured
from tests.redis_server import free_port

START_S = 300


@pytest.mark.long
@pytest.mark.timeout(600)
def test_serve_run_serves() -> None:
    config = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())
    port = config["http_options"]["port"] = free_port()
    # Ray puts sockets below its folder: their paths must be short.
    with tempfile.TemporaryDirectory(prefix="tr", ignore_cleanup_errors=True) as folder:
        config["applications"][0]["args"]["store"] = f"file://{folder}/grammars"
        path = Path(folder) / "local.yaml"
        path.write_text(yaml.safe_dump(config))
        variables = {
            **os.environ,
            **environment(Path(folder)),  # ports that no other server on this machine has
            "RAY_ADDRESS": "local",
            "RAY_TMPDIR": folder,
            "PYTHONPATH": str(REPOSITORY),
        }
        command = [f"{sysconfig.get_path('scripts')}/serve", "run", str(path)]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=REPOSITORY, env=variables, stdout=log, stderr=log, process_group=0)
        try:
            wait_until_ready(process, port, Path(folder) / "log")
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = httpx.post(url, json=structured(PERSON, max_tokens=400), timeout=120, trust_env=False)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            assert check((choice["message"]["content"], choice["finish_reason"]), PERSON)
        finally:
            end(process)


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                return
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)


def end(process: subprocess.Popen[bytes]) -> None:
    """What Ctrl-C does; then whatever is left is killed."""
    started = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=60)
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.kill()
    process.wait()
