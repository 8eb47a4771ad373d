"""How many forced tokens vLLM may draft, by how it was started, and where they are proposed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.vllm.settings import PluginSettings
from deployments.vllm.speculation import forced_drafts, propose_forced_tokens
from gpu_workers.vllm.grammar import RequestGrammar
from grammar_workers import Vocabulary, compile_grammar


def started(window: int | None = 4, *, async_scheduling: bool = False, v2: bool = False) -> Any:
    return SimpleNamespace(
        speculative_config=None if window is None else SimpleNamespace(num_speculative_tokens=window),
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        use_v2_model_runner=v2,
    )


def test_as_many_as_asked_for_and_as_vllm_has_room_for() -> None:
    assert forced_drafts(started(4), PluginSettings(forced_drafts=8)) == 4
    assert forced_drafts(started(16), PluginSettings(forced_drafts=8)) == 8


@pytest.mark.parametrize(
    ("vllm_config", "expected"),
    [
        (started(None), "--speculative-config"),
        (started(async_scheduling=True), "--no-async-scheduling"),
        (started(v2=True), "VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_where_it_cannot_be_it_is_refused(vllm_config: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"TURNSTILE_FORCED_DRAFTS needs .*{expected}"):
        forced_drafts(vllm_config, PluginSettings(forced_drafts=1))
    assert forced_drafts(vllm_config, PluginSettings()) == 0


class Grammar(RequestGrammar):
    def __init__(self, pattern: str) -> None:
        vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256])
        super().__init__(compile_grammar({"type": "regex", "pattern": pattern}, vocabulary), ())


def request(grammar: Any, *, reasoning_ended: bool | None = None) -> Any:
    structured = SimpleNamespace(grammar=grammar, reasoning_ended=reasoning_ended)
    return SimpleNamespace(structured_output_request=structured)


def test_forced_tokens_are_proposed_before_vllm_validates() -> None:
    """At most a window of them, for the requests that a grammar of ours masks now, and wrapped once."""

    class Scheduler:
        def __init__(self) -> None:
            self.vllm_config = started(4)
            self.requests = {
                "guided": request(Grammar("abcdef[xy]")),
                "reasoned": request(Grammar("abc[xy]"), reasoning_ended=True),
                "reasoning": request(Grammar("abc[xy]"), reasoning_ended=False),
                "better": request(Grammar("ab[xy]")),
                "other backend": request(object()),
                "compiling": request(None),
                "free": SimpleNamespace(structured_output_request=None),
            }

        def update_draft_token_ids(self, draft_token_ids: Any) -> None:
            self.seen = dict(zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True))

    settings = PluginSettings(forced_drafts=8)
    propose_forced_tokens(Scheduler, settings)
    wrapped = Scheduler.update_draft_token_ids
    propose_forced_tokens(Scheduler, settings)
    assert Scheduler.update_draft_token_ids is wrapped
    scheduler = Scheduler()
    drafts = {name: [7, 8] for name in scheduler.requests} | {"better": list(b"abx"), "gone": [7, 8]}
    scheduler.update_draft_token_ids(
        SimpleNamespace(req_ids=list(drafts), draft_token_ids=[list(tokens) for tokens in drafts.values()])
    )
    assert scheduler.seen == drafts | {"guided": list(b"abcd"), "reasoned": list(b"abc")}
