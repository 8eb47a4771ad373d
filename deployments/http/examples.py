"""Requests that the OpenAPI document shows, from `examples.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_CONTENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

PROMPT: str = _CONTENT["prompt"]
AS_PERSON: dict[str, Any] = _CONTENT["as_person"]
"""A `response_format`."""


def _shown(path: str) -> dict[str, Any]:
    return {summary: {"summary": summary, "value": value} for summary, value in _CONTENT[path].items()}


CHAT_COMPLETIONS = _shown("/v1/chat/completions")
COMPLETIONS = _shown("/v1/completions")
RESPONSES = _shown("/v1/responses")
MESSAGES = _shown("/v1/messages")
COUNT_TOKENS = _shown("/v1/messages/count_tokens")
TOKENIZE = _shown("/tokenize")
DETOKENIZE = _shown("/detokenize")
GRAMMARS = _shown("/v1/grammars")
