"""`serve run` with a config file of `configs/serve-llm/`, for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.redis_server import free_port
from tests.vllm.server import ROOT, wait_for

CONFIGS = ROOT / "configs" / "serve-llm"


@contextlib.contextmanager
def serve_run(config: str, folder: Path, change: Callable[[dict[str, Any]], None] = lambda args: None) -> Iterator[str]:
    """The base URL of the application that `config` describes; its log is `folder`/serve.log.

    `change` is called with the arguments of the application, whose store is in `folder` already.
    """
    content = yaml.safe_load((CONFIGS / config).read_text())
    port = content["http_options"]["port"] = free_port()
    args = content["applications"][0]["args"]
    args["store"] = f"file://{folder}/store"
    change(args)
    (folder / "serve.yaml").write_text(yaml.safe_dump(content))
    # Ray's sockets stand in this folder, and the name of a socket is short.
    session = tempfile.mkdtemp(prefix="r", dir="/tmp")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_TMPDIR": session,
        "RAY_DEDUP_LOGS": "0",
        "RAY_raylet_start_wait_time_s": "120",
        # Others' memory is no reason to end these processes.
        "RAY_memory_monitor_refresh_ms": "0",
    }
    url = f"http://127.0.0.1:{port}"
    with (folder / "serve.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "ray.serve.scripts", "run", str(folder / "serve.yaml")],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(server, f"{url}/v1/models", folder / "serve.log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
            shutil.rmtree(session, ignore_errors=True)
