"""Forced tokens as drafts of vLLM: how many, and the place where vLLM's scheduler takes its proposer's drafts."""

from __future__ import annotations

from typing import Any

from deployments.vllm.settings import PluginSettings
from deployments.vllm.wrapping import wraps

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


def propose_forced_tokens(scheduler: Any, settings: PluginSettings) -> None:
    """Wraps `update_draft_token_ids` of `scheduler`, vLLM's class, once: forced tokens replace shorter drafts.

    The grammar validates them afterwards like any other draft.
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
    """The grammar that masks the next token of a request of vLLM; None without one, and inside of reasoning."""
    from gpu_workers.vllm.grammar import RequestGrammar

    structured = None if request is None else request.structured_output_request
    if structured is None or structured.reasoning_ended is False:
        return None
    return structured.grammar if isinstance(structured.grammar, RequestGrammar) else None
