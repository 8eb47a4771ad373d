"""Factory of the vLLM engine in a replica of Ray Serve LLM. It loads Turnstile's plugin before the engine."""

from __future__ import annotations

from typing import Any

# Value of `RAYLLM_VLLM_ENGINE_CLS`, by which Ray finds the function.
PATH = f"{__name__}.engine"


def engine(llm_config: Any) -> Any:
    """Load vLLM's plugins (also Turnstile's) in this process, and return Ray's vLLM engine.

    Ray calls this function in each engine replica, because the environment variable `RAYLLM_VLLM_ENGINE_CLS` names it.
    Requests arrive in this process, so it needs the plugins. On a machine with GPUs, Ray itself loads the plugins only
    in another process, which creates vLLM's configuration.

    Args:
        llm_config: Ray's `LLMConfig` of the engine.

    Returns:
        A new `VLLMEngine` of Ray for the configuration.
    """
    from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    return VLLMEngine(llm_config)
