"""A prompt that is too long, as client packages classify errors: they then shorten it, or try another model."""

from __future__ import annotations

from typing import Any

import anthropic
import langchain_openai
import litellm
import openai
import pytest
from langchain_core.exceptions import ContextOverflowError

from tests.compat.conftest import MODEL

LONG: Any = [{"role": "user", "content": "word " * 5000}]


def test_openai(url: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai.OpenAI(base_url=url, api_key="none").chat.completions.create(model=MODEL, messages=LONG)
    assert caught.value.code == "context_length_exceeded"


def test_anthropic(url: str) -> None:
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=MODEL, messages=LONG, max_tokens=9)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "hosted_vllm"])
def test_litellm(url: str, provider: str) -> None:
    base = url.removesuffix("/v1") if provider == "anthropic" else url
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model=f"{provider}/{MODEL}", api_base=base, api_key="none", messages=LONG, max_tokens=9)


def test_langchain(url: str) -> None:
    model = langchain_openai.ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0)
    with pytest.raises(ContextOverflowError):
        model.invoke(LONG[0]["content"])
