"""Our whole application on vLLM, for tests of this folder: `configs/vllm-cpu.yaml` with a store of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import yaml

from deployments.shipped import REPOSITORY
from tests.integration.server import Server, still_runs
from tests.vllm.server import START_TIMEOUT_S

CONFIG = REPOSITORY / "configs" / "vllm-cpu.yaml"
ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
"""Two replicas on a small machine must not ask for cores of their own."""

REPLICA = "ServeReplica:turnstile:ModelReplica"
SPAWNED = ("VLLM::", "multiprocessing.spawn")
"""Words of vLLM's command lines; setproctitle leaves a process its old name when it does not find where that is."""


def serving(folder: Path, **sections: dict[str, Any]) -> Server:
    """A server, not started yet. `sections`: fields of the config's arguments that are others."""
    os.environ.update(ENVIRONMENT)
    arguments = yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]
    arguments["store"] = f"file://{folder}"
    for name, fields in sections.items():
        arguments[name] |= fields
    return Server(arguments, deadline_s=START_TIMEOUT_S)


def engine_cores(server: Server) -> list[psutil.Process]:
    """The EngineCores of the server's model replicas."""
    return _spawned(server.processes(REPLICA))


def engine_workers(server: Server) -> list[psutil.Process]:
    """The workers of those EngineCores."""
    return _spawned(engine_cores(server))


def _spawned(parents: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for parent in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child for child in parent.children() if _is_vllm(child)]
    return found


def _is_vllm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(words in " ".join(process.cmdline()) for words in SPAWNED) and still_runs(process)
    return False
