"""How many forced tokens vLLM may draft, by how it was started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.vllm.settings import PluginSettings
from deployments.vllm.speculation import forced_drafts


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
