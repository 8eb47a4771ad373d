"""Our whole application on vLLM, for tests of this folder: `configs/vllm-cpu.yaml` with a store of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from deployments.arguments import REPOSITORY
from tests.integration.server import Server
from tests.vllm.server import START_TIMEOUT_S

CONFIG = REPOSITORY / "configs" / "vllm-cpu.yaml"
ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
"""Two replicas on a small machine must not ask for cores of their own."""


def serving(folder: Path, **sections: dict[str, Any]) -> Server:
    """A server, not started yet. `sections`: fields of the config's arguments that are others."""
    os.environ.update(ENVIRONMENT)
    arguments = yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]
    arguments["store"] = f"file://{folder}"
    for name, fields in sections.items():
        arguments[name] |= fields
    return Server(arguments, deadline_s=START_TIMEOUT_S)
