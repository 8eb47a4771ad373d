"""The adapter for llama-cpp-python: its vocabulary, `create_completion`, and what the engine does with errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from models.to_gguf import convert
from tests.documents import REPOSITORY
from tests.engines.conftest import TEXTS
from tests.engines.runners import FOLDER, PERSON, LlamaCpp
from turnstile_llm import Regex, Vocabulary, compile
from turnstile_llm.llama_cpp import LogitsProcessor, vocabulary

CHAT = [{"role": "user", "content": TEXTS[0]}]
Prompt = Callable[[str], list[int]]


def answer(response: Any) -> tuple[str, str]:
    """The text and the finish reason."""
    (choice,) = response["choices"]
    return choice["message"]["content"] if "message" in choice else choice["text"], choice["finish_reason"]


def test_the_vocabulary_is_that_of_the_folder(llama: LlamaCpp) -> None:
    assert llama.vocabulary.fingerprint == Vocabulary.from_pretrained(str(FOLDER)).fingerprint
    assert llama.vocabulary.special_tokens["<|end|>"] == llama.llama.token_eos() == 1


def test_the_converted_model_is_the_embedded_one(llama: LlamaCpp, mlx: Any, tokenizer: Any, prompt: Prompt) -> None:
    for text in (*TEXTS, '{"a": [1, 22.5e3, null], "b":  "naïve café — 😀"}\n\tx', "  a  "):
        assert llama.llama.tokenize(text.encode(), add_bos=False) == tokenizer.encode(text).ids
        assert llama.generate(prompt(text), None, 40, 0.0, 0) == mlx.generate(prompt(text), None, 40, 0.0, 0)


def test_tokens_have_the_bytes_that_the_engine_writes(llama: LlamaCpp, prompt: Prompt) -> None:
    tokens = llama.generate(prompt(TEXTS[0]), None, 200, 2.0, 1)
    assert llama.llama.detokenize(tokens) == b"".join(map(llama.vocabulary.token_bytes, tokens))


def test_a_token_that_the_engine_cannot_write_is_never_allowed(tmp_path: Path) -> None:
    """`detokenize` has a buffer of 32 bytes."""
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    names = {number: piece for piece, number in tokenizer["model"]["vocab"].items()}
    names |= {1022: "a" * 32, 1023: "a" * 33}
    tokenizer["model"]["vocab"] = {piece: number for number, piece in names.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert(tmp_path / "long.gguf", folder)
    llama = Llama(str(tmp_path / "long.gguf"), vocab_only=True, verbose=False)
    fsm = compile(Regex("a+"), vocabulary(llama)).automaton()
    assert llama.detokenize([1022, 1023]) == b"a" * 32
    assert fsm.allowed_tokens(fsm.initial_state) & {1022, 1023} == {1022}


@pytest.mark.parametrize("wrapped", [False, True])
def test_completions_and_chats(wrapped: bool, llama: LlamaCpp) -> None:
    processor: Any = LogitsProcessor(compile(PERSON, llama.vocabulary), llama.llama)
    processor = LogitsProcessorList([processor]) if wrapped else processor
    settings = {"max_tokens": 80, "logits_processor": processor}
    for temperature in (0.0, 1.0, 2.0):
        for response in (
            llama.llama.create_chat_completion(CHAT, temperature=temperature, **settings),
            llama.llama.create_completion("Alice Smith", temperature=temperature, **settings),
        ):
            text, reason = answer(response)
            jsonschema.validate(json.loads(text), PERSON)
            assert reason == "stop"
    chunks = llama.llama.create_completion("Alice Smith", temperature=0.0, stream=True, **settings)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == answer(llama.llama.create_completion("Alice Smith", temperature=0.0, **settings))[0]


def test_a_bias_is_applied_after_the_mask(llama: LlamaCpp) -> None:
    """llama-cpp-python replaces the list by the result of its `extend`, which is None for a plain list."""
    choice = LogitsProcessor(compile(Regex("yes|no"), llama.vocabulary), llama.llama)
    (yes,), (no,) = ((llama.vocabulary.encode(text) or [0])[:1] for text in (b"yes", b"no"))
    assert yes != no
    for favored, start in ((yes, "y"), (no, "n")):
        response = llama.llama.create_completion("Well?", logits_processor=choice, logit_bias={favored: 50.0, 7: 90.0})
        text, reason = answer(response)
        assert text in ("yes", "no") and text.startswith(start) and reason == "stop"


def test_drafts_are_rejected(llama: LlamaCpp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama.llama, "draft_model", LlamaPromptLookupDecoding())
    with pytest.raises(ValueError, match="draft_model"):
        llama.processor(compile(PERSON, llama.vocabulary))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_output_looks_truncated_after_an_error(error: Any, llama: LlamaCpp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine calls the processor from C, where an exception ends nothing."""
    processor = LogitsProcessor(compile(PERSON, llama.vocabulary), llama.llama)
    bitmask, calls = processor._masks.bitmask, 0

    def fail_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise error("too large")
        return bitmask(*arguments)

    monkeypatch.setattr(processor._masks, "bitmask", fail_once)
    bias = {llama.llama.token_eos(): 100.0}
    for _ in range(2):
        response = llama.llama.create_completion("x", max_tokens=30, logits_processor=processor, logit_bias=bias)
        assert answer(response)[1] == "length" and calls == 6


def test_the_file_is_written_by_a_program(tmp_path: Path, llama: LlamaCpp) -> None:
    path = tmp_path / "tiny.gguf"
    subprocess.run([sys.executable, "-m", "models.to_gguf", str(path)], cwd=REPOSITORY, check=True, timeout=120)
    found = Llama(str(path), vocab_only=True, verbose=False)
    assert vocabulary(found).fingerprint == llama.vocabulary.fingerprint
