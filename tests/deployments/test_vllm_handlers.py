"""Warnings of the plugin about a vLLM that lacks the handlers that it wraps. vLLM is not needed."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.vllm import handlers


def test_each_missing_handler_is_logged_once_with_its_effect(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(handlers.importlib, "import_module", missing)
    monkeypatch.setattr(handlers.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(handlers.logger, "propagate", False)
    handlers.wrap_handlers.__wrapped__(None)  # type: ignore[arg-type]
    events = "rejections arrive as events of the stream"
    effects = {
        "OpenAIServingChat": events,
        "OpenAIServingCompletion": events,
        "OpenAIServingResponses": events,
        "AnthropicServingMessages": "tracebacks are logged",
        "validate_structural_tag_payload": "XGrammar checks structural tags, too",
    }
    logged = [record.getMessage().partition(" error=")[0] for record in caplog.records]
    assert logged == [f"vLLM has no such handler, {effect}: handler={name}" for name, effect in effects.items()]
