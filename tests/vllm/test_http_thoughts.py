"""`vllm serve` with a reasoning parser: what is no chat is constrained from its first token (vLLM issue 57726)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.vllm.server import vllm_serve

PATTERN = "[a-c]{3}-[0-9]{1,4}!"

# Thoughts between two special tokens that the embedded model has.
PARSER = """
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


@ReasoningParserManager.register_module("between")
class Between(BaseThinkingReasoningParser):
    start_token = "<|user|>"
    end_token = "<|system|>"
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("thoughts")
    (folder / "between.py").write_text(PARSER)
    arguments = ["--reasoning-parser-plugin", str(folder / "between.py"), "--reasoning-parser", "between"]
    with vllm_serve(folder, arguments) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def complete(client: openai.OpenAI, seed: int, **fields: Any) -> Any:
    return client.completions.create(
        model="tiny",
        prompt="The code is",
        seed=seed,
        max_tokens=40,
        extra_body={"structured_outputs": {"regex": PATTERN}},
        **fields,
    )


def test_a_completion_is_constrained(client: openai.OpenAI) -> None:
    for seed in range(3):
        assert re.fullmatch(PATTERN, complete(client, seed).choices[0].text)


def test_a_streamed_completion_is_constrained(client: openai.OpenAI) -> None:
    text = "".join(chunk.choices[0].text for chunk in complete(client, 1, stream=True) if chunk.choices)
    assert re.fullmatch(PATTERN, text)


def test_a_chat_is_constrained_behind_its_thoughts(client: openai.OpenAI) -> None:
    """The mask begins where the prompt has ended the thoughts, and not before."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 40,
        "temperature": 0,
        "extra_body": {"structured_outputs": {"regex": PATTERN}},
    }
    over = client.chat.completions.create(messages=[{"role": "system", "content": "x"}], **asked)
    assert re.fullmatch(PATTERN, _written(over.choices[0].message))
    thinking = client.chat.completions.create(messages=[{"role": "user", "content": "x"}], **asked)
    assert not re.fullmatch(PATTERN, _written(thinking.choices[0].message))


def _written(message: Any) -> str:
    """The whole output: the parser sees no end of thoughts in it where the prompt has the end."""
    return (message.reasoning or "") + (message.content or "")
