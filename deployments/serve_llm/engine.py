"""How a replica of Ray Serve LLM makes its engine."""

from __future__ import annotations

from typing import Any

PATH = f"{__name__}.engine"
"""The value of `RAYLLM_VLLM_ENGINE_CLS`, by which Ray finds the function."""


def engine(llm_config: Any) -> Any:
    """Ray's own engine, in a process that has loaded vLLM's plugins.

    Where there are GPUs, Ray lets another process make vLLM's configuration, and with it load the plugins; but it is
    here that requests come in.
    """
    from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    return VLLMEngine(llm_config)
