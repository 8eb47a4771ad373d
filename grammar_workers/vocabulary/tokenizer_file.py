"""A vocabulary read from a model's files without `transformers`, whose import takes longer than most compilations.

For tools beside a server, such as `turnstile check`. What is not plain in the files, as where `transformers` would add
tokens of its own, is left to `vocabulary.load_vocabulary`: both give the same fingerprint or this one gives none.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grammar_workers.types import TokenId
from grammar_workers.vocabulary.token_bytes import UnsupportedTokenizerError
from grammar_workers.vocabulary.vocabulary import Vocabulary

TOKENIZER, TOKENIZER_CONFIG, CONFIG, GENERATION_CONFIG = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
)


@dataclass(frozen=True)
class _AddedToken:
    content: str
    special: bool


@dataclass(frozen=True)
class _EndTokens:
    eos_token_id: int | list[int] | None


@dataclass(frozen=True)
class _Decoder:
    description: dict[str, Any]

    def __getstate__(self) -> str:
        return json.dumps(self.description)


@dataclass(frozen=True)
class _Backend:
    decoder: _Decoder | None


class _FileTokenizer:
    """What `Vocabulary.from_tokenizer` asks a tokenizer, answered from its files."""

    def __init__(self, folder: Path) -> None:
        data = _read(folder / TOKENIZER)
        settings = _read(folder / TOKENIZER_CONFIG)
        description = data.get("decoder")
        self.backend_tokenizer = _Backend(description and _Decoder(description))
        self.added_tokens_decoder = {
            token["id"]: _AddedToken(token["content"], token["special"]) for token in data["added_tokens"]
        }
        vocabulary = data["model"]["vocab"]
        # Unigram models list their pieces, others number them.
        pieces = vocabulary if isinstance(vocabulary, dict) else {piece: n for n, (piece, _) in enumerate(vocabulary)}
        self._pieces = {number: piece for piece, number in pieces.items()}
        self._pieces |= {number: token.content for number, token in self.added_tokens_decoder.items()}
        decode = _decoder(description)
        self.decode = decode and (lambda tokens, **_: decode([self._pieces[token] for token in tokens]))
        self.eos_token_id = self._end_token(settings)
        for number, token in settings.get("added_tokens_decoder", {}).items():
            if self.added_tokens_decoder.get(int(number)) != _AddedToken(token["content"], token["special"]):
                raise ValueError(f"{TOKENIZER_CONFIG} adds tokens that {TOKENIZER} does not have")

    def convert_ids_to_tokens(self, tokens: Sequence[TokenId]) -> list[str | None]:
        return [self._pieces.get(token) for token in tokens]

    def _end_token(self, settings: dict[str, Any]) -> int | None:
        named = settings["eos_token"]  # without it, the tokenizer's class may have one
        content = named["content"] if isinstance(named, dict) else named
        if content is None:
            return None
        for number, token in self.added_tokens_decoder.items():
            if token.content == content:
                return number
        raise ValueError(f"the end token of {TOKENIZER_CONFIG} is none of {TOKENIZER}'s added tokens")


def _decoder(description: dict[str, Any] | None) -> Callable[[list[str]], str] | None:
    """The decoder that `tokenizers` builds from its description; None where the package is not installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    if description is None:
        return " ".join
    empty = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "decoder": description, "model": empty})).decoder.decode


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """Read the vocabulary of the model in `folder`, as `load_vocabulary` does.

    Returns:
        None if the files do not say everything: `transformers` adds what its classes have as defaults.

    Raises:
        UnsupportedTokenizerError: The bytes of the tokens cannot be derived, and `transformers` is not installed.
    """
    try:
        config = _read(folder / CONFIG)
        config = config.get("text_config", config)
        tokenizer = _FileTokenizer(folder)
        # Without that file, and without an entry in the other, the end tokens are those of the model's class.
        generated = (folder / GENERATION_CONFIG).is_file()
        ends = _read(folder / GENERATION_CONFIG).get("eos_token_id") if generated else config["eos_token_id"]
        return Vocabulary.from_tokenizer(tokenizer, config["vocab_size"], _EndTokens(ends))
    except UnsupportedTokenizerError:
        if importlib.util.find_spec("transformers") is None:
            raise
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> dict[str, Any]:
    """A file's JSON object; nothing where there is no such file."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is no JSON object")
    return found
