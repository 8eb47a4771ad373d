"""Vocabularies from the tokenizers of five packages, compared with what each package decodes."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import mistral_common
import pytest
import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tests.grammar_workers.vocabularies import random_walk, text_of
from turnstile_llm import Regex, UnsupportedTokenizerError, Vocabulary, compile

FOLDER = Path(__file__).parents[2] / "models" / "turnstile-tiny"
TEXTS = ["the cat sat", "naïve café — 😀", "  two  spaces\n\tand tabs", '{"a": [1, 2.5e3, null]}']


def of_tokenizers() -> Any:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def of_transformers() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


def of_tiktoken() -> Any:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257, "é".encode(): 258}
    return tiktoken.Encoding(
        "own", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 262, "<|tool|>": 263}
    )


def of_sentencepiece() -> Any:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=310,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def of_mistral_common() -> Any:
    data = Path(mistral_common.__file__).parent / "data"
    return MistralTokenizer.from_file(str(data / "mistral_instruct_tokenizer_241114.model.v7"))


def encoded(tokenizer: Any, text: str) -> list[int]:
    inner = getattr(getattr(tokenizer, "instruct_tokenizer", None), "tokenizer", None)
    if inner is not None:
        return list(inner.encode(text, bos=False, eos=False))
    if isinstance(tokenizer, Tokenizer):
        return list(tokenizer.encode(text).ids)
    return list(tokenizer.encode(text))


@pytest.mark.parametrize(
    ("make", "size", "ends", "special"),
    [
        (of_tokenizers, 1024, (1,), "<|assistant|>"),
        (of_transformers, 1024, (1,), "<|assistant|>"),
        (of_tiktoken, 264, (262,), "<|tool|>"),
        (of_sentencepiece, 310, (2,), "<s>"),
        (of_mistral_common, 32768, (2,), "[INST]"),
    ],
)
def test_bytes_are_those_that_the_tokenizer_decodes(make: Any, size: int, ends: Any, special: str) -> None:
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert (vocabulary.size, vocabulary.eos_token_ids) == (size, ends)
    assert vocabulary.bitmask_width == -(-size // 32)
    assert vocabulary.token_bytes(vocabulary.special_tokens[special]) == b""
    for text in TEXTS:
        assert text_of(vocabulary, encoded(tokenizer, text)).decode().lstrip() == text.lstrip()
    wider = Vocabulary.from_tokenizer(tokenizer, size + 40)
    assert wider.size == size + 40 and wider.fingerprint != vocabulary.fingerprint
    assert wider.token_bytes(size - 1) == vocabulary.token_bytes(size - 1)


@pytest.mark.parametrize("make", [of_tokenizers, of_tiktoken, of_sentencepiece])
def test_outputs_decode_to_valid_texts(make: Any) -> None:
    tokenizer = make()
    fsm = compile(Regex(r"x[a-zé ]{0,9}(th|€)+"), Vocabulary.from_tokenizer(tokenizer)).automaton()
    for seed in range(5):
        tokens = random_walk(fsm, random.Random(seed))
        assert tokenizer.decode(tokens).encode() == text_of(fsm.vocabulary, tokens)


def test_a_folder_has_the_vocabulary_of_its_tokenizer() -> None:
    folder = Vocabulary.from_pretrained(str(FOLDER))
    assert Vocabulary.from_tokenizer(of_tokenizers()).fingerprint == folder.fingerprint
    assert Vocabulary.from_tokenizer(of_transformers()).fingerprint == folder.fingerprint


def test_a_tokenizer_without_an_end_token() -> None:
    encoding = tiktoken.Encoding("own", pat_str=r".", mergeable_ranks={b"a": 0, b"b": 1}, special_tokens={"<x>": 2})
    assert Vocabulary.from_tokenizer(encoding).eos_token_ids == ()
    model = io.BytesIO()
    options = {"vocab_size": 40, "eos_id": -1, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=model, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert Vocabulary.from_tokenizer(processor).eos_token_ids == ()


@pytest.mark.parametrize("tokenizer", ["model.gguf", None, 5, object()])
def test_anything_else_is_a_typed_error(tokenizer: Any) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=rf"^{type(tokenizer).__name__} is not a supported tokenizer"):
        Vocabulary.from_tokenizer(tokenizer)
