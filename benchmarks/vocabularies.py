"""Public vocabularies for benchmarks and tests, from the `mistral-common` package."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from pathlib import Path

import mistral_common
import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from transformers import AutoTokenizer

from grammar_workers import Vocabulary
from grammar_workers.vocabulary.vocabulary import load_vocabulary

_DATA = Path(mistral_common.__file__).parent / "data"
_SENTENCEPIECE = _DATA / "mistral_instruct_tokenizer_240323.model.v3"


@functools.cache
def tekken_vocabulary() -> Vocabulary:
    """Return the vocabulary of Mistral's Tekken, a byte-level BPE tokenizer with 131,072 tokens.

    The first 1,000 tokens are special. Token 2 is the end token.
    """
    specials, tokens, _ = _tekken()
    return Vocabulary([*[None] * specials, *tokens], [2])


@functools.cache
def tekken_encoding() -> tiktoken.Encoding:
    """Return the tokenizer of `tekken_vocabulary`, as an encoding of tiktoken."""
    specials, tokens, pattern = _tekken()
    return tiktoken.Encoding(
        "tekken",
        pat_str=pattern,
        mergeable_ranks={token: specials + rank for rank, token in enumerate(tokens)},
        special_tokens={f"<SPECIAL_{token}>": token for token in range(specials)},
    )


@functools.cache
def _tekken() -> tuple[int, list[bytes], str]:
    """Return the number of special tokens, the bytes of the others, and the regex that splits text before merging."""
    data = json.loads((_DATA / "tekken_240911.json").read_bytes())
    specials = data["config"]["default_num_special_tokens"]
    many = data["config"]["default_vocab_size"] - specials
    tokens = [base64.b64decode(entry["token_bytes"]) for entry in data["vocab"][:many]]
    return specials, tokens, data["config"]["pattern"]


@functools.cache
def sentencepiece_vocabulary() -> Vocabulary:
    """Return the vocabulary of Mistral's SentencePiece tokenizer, with 32,768 tokens.

    It has byte fallback: many characters can be encoded as one token or as several single-byte tokens.
    """
    model = sentencepiece.SentencePieceProcessor(model_file=str(_SENTENCEPIECE))
    token_bytes: list[bytes | None] = []
    for token in range(model.get_piece_size()):
        piece = model.id_to_piece(token)
        if model.is_control(token) or model.is_unknown(token):
            token_bytes.append(None)
        elif model.is_byte(token):
            token_bytes.append(bytes([int(piece[3:5], 16)]))
        else:
            token_bytes.append(piece.replace("▁", " ").encode())
    return Vocabulary(token_bytes, [model.eos_id()])


def named_vocabulary(name: str) -> Vocabulary:
    """Return a vocabulary by its name.

    Args:
        name: `tekken`, `sentencepiece`, or the folder or Hugging Face ID of a model.
    """
    makers = {"tekken": tekken_vocabulary, "sentencepiece": sentencepiece_vocabulary}
    return makers[name]() if name in makers else load_vocabulary(name)


def named_encoder(name: str) -> Callable[[str], list[int]]:
    """Return the canonical tokenizer of a vocabulary.

    Args:
        name: `tekken`, `sentencepiece`, or the folder or Hugging Face ID of a model.

    Returns:
        Function from a text to its token IDs, without special tokens.
    """
    if name == "tekken":
        tekken = Tekkenizer.from_file(_DATA / "tekken_240911.json")
        return lambda text: tekken.encode(text, bos=False, eos=False)
    if name == "sentencepiece":
        model = sentencepiece.SentencePieceProcessor(model_file=str(_SENTENCEPIECE))
        # SentencePiece puts a space before a text: here before a line end, and both are cut off again.
        return lambda text: model.encode("\n" + text)[2:]
    tokenizer = AutoTokenizer.from_pretrained(name)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)
