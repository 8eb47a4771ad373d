"""`vllm serve` with the embedded model, for tests and benchmarks of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.redis_server import free_port

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "turnstile-tiny"
START_TIMEOUT_S = 600.0


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """Variables of a server whose store is in `folder`; `settings` come on top."""
    return {
        **os.environ,
        "TURNSTILE_VLLM": "1",
        "TURNSTILE_STORE": f"file://{folder}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **settings,
    }


@contextlib.contextmanager
def vllm_serve(
    folder: Path, arguments: Sequence[str] = (), *, model: Path = MODEL, backend: str = "outlines", **settings: str
) -> Iterator[str]:
    """The base URL of a server of `model`, as `tiny`, that runs until the end; its log is `folder`/vllm.log."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", "--max-num-seqs", "16"),
        *("--enforce-eager", "--dtype", "float32"),
        *("--structured-outputs-config", json.dumps({"backend": backend})),
        *arguments,
    ]
    url = f"http://127.0.0.1:{port}"
    with (folder / "vllm.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment(folder / "store", **settings), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_for(server, f"{url}/health", folder / "vllm.log")
            yield url
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_for(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Returns when `url` answers. Raises RuntimeError with the end of the log where the server ends before it does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False).is_success:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
