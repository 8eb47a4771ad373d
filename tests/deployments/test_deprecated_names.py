"""Names of the last minor version: configs, requests and queries of dashboards that have them still work."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.arguments import AppArguments
from deployments.cli.main import main
from gpu_workers.request import ConditionalSampling
from grammar_workers.options import GrammarOptions
from grammar_workers.validation import warn_deprecated
from tests.k8s.test_monitoring import asked_for, exported

ENGINE = {
    "slots": ("max_num_seqs", 3),
    "max_length": ("max_model_len", 64),
    "prefill_chunk": ("long_prefill_token_threshold", 5),
    "step_tokens": ("max_num_batched_tokens", 40),
    "shortest_prefix": ("min_prefix_tokens", 7),
    "ngram": ("prompt_lookup_max", 2),
    "max_drafts": ("num_speculative_tokens", 4),
    "mask_patience_ms": ("mask_timeout_ms", 9.0),
}
QUERIES = (
    "ray_turnstile_new_grammar_wait_seconds_bucket",
    "ray_turnstile_grammar_late_seconds_bucket",
    'ray_turnstile_grammar_compilations{place="model_replica"}',
    "sum by (verdict) (rate(ray_turnstile_draft_tokens_total[5m]))",
)


@pytest.fixture(autouse=True)
def first_time() -> None:
    warn_deprecated.cache_clear()


def test_a_config_with_the_old_names_is_the_one_with_the_new_names(caplog: pytest.LogCaptureFixture) -> None:
    def config(name: int) -> dict[str, Any]:
        engine = {(old, new)[name]: value for old, (new, value) in ENGINE.items()}
        stop, wait = (("drain_s", "graceful_shutdown_timeout_s")[name], ("max_wait_s", "queue_timeout_s")[name])
        options = {"on_unsupported": ("refuse", "reject")[name]}
        scales = {"router": {stop: 3}, "compiler": {stop: 4, wait: 5, "options": options}}
        return {"model": "m", **scales, "replica": {stop: 6, "engine": engine}}

    with caplog.at_level(logging.WARNING):
        new = AppArguments.model_validate(config(1))
        assert caplog.records == []
        assert AppArguments.model_validate(config(0)) == new
    told = [record.getMessage() for record in caplog.records]
    assert all(message.startswith("deprecated name") for message in told)
    assert {message.split("use=")[1] for message in told} == {
        *(field for field, _ in ENGINE.values()), "graceful_shutdown_timeout_s", "queue_timeout_s", "reject"
    }  # fmt: skip


def test_both_names_together_are_an_error() -> None:
    with pytest.raises(ValidationError, match="`slots` is the deprecated name of `max_num_seqs`: remove it"):
        AppArguments.model_validate({"model": "m", "replica": {"engine": {"slots": 2, "max_num_seqs": 2}}})


def test_fields_of_requests() -> None:
    assert ConditionalSampling.model_validate({"particles": 2, "resample_below": 0.25}).ess_threshold == 0.25
    assert GrammarOptions.model_validate({"on_unsupported": "refuse"}) == GrammarOptions()


def test_the_flag_of_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    assert main(["check", str(tmp_path / "schema.json"), "--on-unsupported", "refuse"]) == 0


@pytest.mark.parametrize("query", QUERIES)
def test_queries_find_their_metrics(query: str) -> None:
    assert asked_for(query) == set()


def test_labels_have_both_names() -> None:
    from docs.generator.metrics import metrics

    rows = {line.split("`")[1]: line for line in metrics().splitlines() if line.startswith("| `turnstile_")}
    assert "`component`, `place`" in rows["turnstile_grammar_compilations"]
    assert "`status`, `verdict`" in rows["turnstile_draft_tokens_total"]
    assert "ray_turnstile_grammar_wait_seconds" in exported()
