"""Forced tokens as draft tokens of vLLM's speculative decoding.

A *forced token* is the only token that a grammar allows at its position. This module computes the maximum number of
forced tokens per step, and changes vLLM's scheduler so that forced tokens become drafts.
"""

from __future__ import annotations

from typing import Any

from deployments.vllm.settings import PluginSettings
from deployments.vllm.wrapping import wraps

_SETTING = "TURNSTILE_FORCED_DRAFTS"


def forced_drafts(vllm_config: Any, settings: PluginSettings) -> int:
    """Return the maximum number of forced tokens that become drafts in one step.

    A *forced token* is the only token that a grammar allows at its position. The scheduler sends forced tokens to the
    worker in place of vLLM's drafts. This requires speculative decoding, `--no-async-scheduling`, and version 1 of the
    model runner, because the worker otherwise ignores the drafts of the scheduler.

    Args:
        vllm_config: vLLM's `VllmConfig` of the engine.
        settings: Settings of the plugin. `forced_drafts` is the maximum number that the user has set.

    Returns:
        The smaller of `settings.forced_drafts` and vLLM's `num_speculative_tokens`. 0: no forced tokens become drafts.

    Raises:
        ValueError: `forced_drafts` is set, but vLLM's configuration does not allow it. The message names the option of
            vLLM to change.
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


def propose_forced_tokens(scheduler: Any, settings: PluginSettings) -> None:
    """Change vLLM's scheduler so that forced tokens become drafts.

    A *forced token* is the only token that a grammar allows at its position. The method `update_draft_token_ids` is
    wrapped in place. In each request, forced tokens replace vLLM's drafts if there are more forced tokens than leading
    drafts that the grammar allows. A second call has no effect.

    Args:
        scheduler: vLLM's scheduler class.
        settings: Settings of the plugin. `forced_drafts` limits the number of forced tokens.
    """

    @wraps(scheduler, "update_draft_token_ids")
    def update_draft_token_ids(original: Any, self: Any, draft_token_ids: Any) -> None:
        most = forced_drafts(self.vllm_config, settings)
        drafts = draft_token_ids.draft_token_ids
        for index, request_id in enumerate(draft_token_ids.req_ids):
            if (grammar := _grammar(self.requests.get(request_id))) is not None:
                drafts[index] = grammar.with_forced_tokens(drafts[index], most)
        original(self, draft_token_ids)


def _grammar(request: Any) -> Any:
    """Return the grammar that masks the next token of a request, or None without a grammar and inside reasoning."""
    from gpu_workers.vllm.grammar import RequestGrammar

    structured = None if request is None else request.structured_output_request
    if structured is None or structured.reasoning_ended is False:
        return None
    return structured.grammar if isinstance(structured.grammar, RequestGrammar) else None
