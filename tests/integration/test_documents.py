"""What README, guides and examples tell people to type and to send: it runs, and is answered."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.documents import REPOSITORY, Block, blocks, curl_requests, printed
from tests.integration.server import Server

ADDRESS = "http://127.0.0.1:8000"
WITH_PYTHON = ("README.md", "docs/tutorial.md", "docs/tools.md", "docs/streaming.md")
WITH_CURL = ("README.md", "docs/tutorial.md", "docs/installation.md", "docs/precompile.md", "docs/constraints.md")

WITH_SHELL = (
    "README.md",
    "docs/tutorial.md",
    "docs/installation.md",
    "docs/precompile.md",
    "docs/streaming.md",
    "examples/README.md",
)
BEGINNINGS = (".venv/bin/turnstile", ".venv/bin/python examples/", "cat > person.json")
"""Blocks that begin so are run as they stand, against the server of these tests."""
NOT_RUN_HERE = {
    "make serve": "what every one of these tests starts, with free ports",
    "pip install": "tests/integration/test_wheel.py installs the wheel and serves from it",
    "git clone": "a repository's address, then make serve",
    "turnstile serve": "starts a server with another model",
    "redis-server": "what the server of these tests has, and make serve",
    "server=$(pgrep": "prints the processes of a server that make serve has started",
    "TURNSTILE_VLLM=1 vllm serve": "needs vLLM: tests/vllm/test_serve.py",
    "make serve CONFIG=configs/gpu.yaml": "needs a GPU and a model hub: tests/deployments/test_config_file.py reads it",
    "python -m grammar_workers.ship_kernels": "writes into the package: test_kernel_compilation.py runs it in a copy",
    "serve deploy": "needs a cluster",
    "kind create cluster": "needs Docker and a cluster: tests/k8s builds what it applies",
}
"""Blocks that begin so are only parsed, with the reason."""


@pytest.mark.parametrize("document", WITH_PYTHON)
def test_python_blocks_run(document: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    namespace: dict[str, Any] = {}
    for block in blocks(document, "python"):
        addressed = replace(block, text=block.text.replace(ADDRESS, server.url))
        assert ("print(" in block.text) == bool(printed(addressed, document, namespace))


@pytest.mark.anyio
@pytest.mark.parametrize("document", WITH_CURL)
async def test_curl_commands_are_answered(document: str, server: Server, http: httpx.AsyncClient) -> None:
    key, sent = "KEY", 0
    for request in curl_requests(document, ADDRESS):
        body = None if request.body is None else request.body.replace("KEY", key)
        response = await http.request(
            "GET" if body is None else "POST",
            request.url.replace(ADDRESS, server.url).replace("KEY", key),
            content=body,
            headers=request.headers,
        )
        assert response.status_code == 200, f"{document}, line {request.line}: {response.text}"
        key = response.json().get("key", key)
        sent += 1
    assert sent


def local(block: Block, server: Server) -> str:
    """A block that asks the server of these tests, with this environment's programs."""
    text = block.text.replace(".venv/bin/turnstile", f"{sys.executable} -m deployments.cli")
    text = re.sub(r"(deployments\.cli (?:generate|precompile))", rf"\1 --url {server.url}", text)
    text = re.sub(r"\.venv/bin/python (examples/\w+\.py)", rf"{sys.executable} \1 --url {server.url}", text)
    return text.replace(ADDRESS, server.url)


@pytest.mark.parametrize("document", WITH_SHELL)
def test_shell_blocks_run_or_say_why_not(document: str, server: Server, tmp_path: Path) -> None:
    for folder in ("examples", "models", "configs"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_PROXY": "127.0.0.1"}
    for block in blocks(document, "bash", "sh"):
        where = f"{document}, line {block.line}"
        if block.text.startswith(BEGINNINGS):
            command = ["bash", "-euo", "pipefail", "-c", local(block, server)]
            ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
            assert ran.returncode == 0, f"{where}: {ran.stdout}{ran.stderr}"
            assert ran.stdout, where
        else:
            assert block.text.startswith(("curl ", *NOT_RUN_HERE)), f"{where}: run it, or say why not"
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


@pytest.mark.anyio
async def test_what_the_tutorial_calls_impossible_is_refused_as_it_says(http: httpx.AsyncClient) -> None:
    tutorial = (REPOSITORY / "docs" / "tutorial.md").read_text()
    (wanted,) = re.findall(r'replace `\{"type": "integer"\}` by `(\{.*?\})`', tutorial)
    (request,) = (
        block.text for block in blocks("docs/tutorial.md", "sh") if '"city": {"type": "string"}' in block.text
    )
    body = json.loads(request[request.index("{") : request.rindex("}") + 1])
    body["response_format"]["schema"]["properties"]["age"] = json.loads(wanted)
    refusal = await http.post("/v1/chat/completions", json=body)
    assert refusal.status_code == 400
    assert f"`{refusal.json()['error']['pointer']}`" in tutorial
