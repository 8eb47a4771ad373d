"""Models, and SGLang's context of one scheduler process, for the tests of this folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.documents import REPOSITORY
from tests.sglang.scheduler import Scheduler, context, own_store

TINY = REPOSITORY / "models" / "turnstile-tiny"
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<|endoftext|>"]

Start = Callable[..., Scheduler]


@pytest.fixture(scope="session")
def marked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's tokenizer with one token for each mark of Qwen3, in place of several."""
    folder = tmp_path_factory.mktemp("marked")
    shutil.copytree(TINY, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.add_tokens(MARKS, special_tokens=True)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def started() -> dict[object, Scheduler]:
    """The schedulers that run already: a compile process for each test would take minutes."""
    return {}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, store: Path, started: dict[object, Scheduler]) -> Start:
    """Return a scheduler whose grammar backend is ours, made by the plugin that SGLang has loaded."""

    def start(model: Path = TINY, parser: str | None = None, strict: bool = False, fresh: bool = False) -> Scheduler:
        key = (model, parser, strict)
        if fresh or key not in started:
            for name, value in own_store(store).items():
                monkeypatch.setenv(name, value)
            with context(str(model), parser, strict) as arguments:
                tokenizer: Any = AutoTokenizer.from_pretrained(model)
                # Logits are wider than the vocabulary in most models.
                made = Scheduler(arguments, tokenizer, len(tokenizer) + 40)
            if fresh:
                return made
            started[key] = made
        scheduler = started[key]
        scheduler.manager.clear()
        scheduler.rng = np.random.default_rng(0)
        return scheduler

    return start
