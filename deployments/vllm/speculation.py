"""How many forced tokens may be drafts of this vLLM."""

from __future__ import annotations

from typing import Any

from deployments.vllm.settings import PluginSettings

_SETTING = "TURNSTILE_FORCED_DRAFTS"


def forced_drafts(vllm_config: Any, settings: PluginSettings) -> int:
    """The longest run of forced tokens in a window: what is asked for, at most vLLM's own window; 0: none.

    The scheduler hands them to the worker in place of the proposer's drafts. With async scheduling and in version 2 of
    the model runner the worker verifies its own drafts, whatever the scheduler says. Raises ValueError saying how to
    start vLLM.
    """
    if not settings.forced_drafts:
        return 0
    speculative = vllm_config.speculative_config
    if speculative is None:
        raise ValueError(f"{_SETTING} needs a vLLM that speculates: --speculative-config")
    if vllm_config.scheduler_config.async_scheduling:
        raise ValueError(f"{_SETTING} needs --no-async-scheduling: drafts do not pass through the scheduler otherwise")
    if vllm_config.use_v2_model_runner:
        raise ValueError(f"{_SETTING} needs VLLM_USE_V2_MODEL_RUNNER=0: version 2 keeps its drafts on the device")
    return min(settings.forced_drafts, int(speculative.num_speculative_tokens))
