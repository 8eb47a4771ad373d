"""The engines and the chat prompts of the embedded model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engines.runners import FOLDER, PERSON, LlamaCpp, Mlx, Runner
from turnstile_llm import Grammar, compile

TEXTS = ("Extract the person as JSON: Alice is 34.", "Bob, 5 years old, lives in Paris. Return JSON.")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaCpp:
    return LlamaCpp(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def mlx(tmp_path_factory: pytest.TempPathFactory) -> Mlx:
    return Mlx(tmp_path_factory.mktemp("mlx"))


@pytest.fixture(params=["llama", "mlx"])
def runner(request: pytest.FixtureRequest) -> Runner:
    found: Runner = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def grammar(runner: Runner) -> Grammar:
    return compile(PERSON, runner.vocabulary)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="session")
def prompt(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return the tokens of a chat with one message."""
    return lambda text: list(tokenizer.encode(f"<|user|>{text}<|end|><|assistant|>").ids)
