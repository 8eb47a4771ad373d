"""Reader of vocabularies from tokenizer files, without `transformers`.

Command-line tools such as `turnstile check` use it, because the import of `transformers` takes longer than most
compilations. If a file relies on the defaults of a class of `transformers`, `read_vocabulary` returns None, and the
caller uses `vocabulary.load_vocabulary`. Both functions return vocabularies with equal fingerprints.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
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


class _FileTokenizer:
    """The attributes and methods of a tokenizer that `Vocabulary.from_tokenizer` reads, built from the files."""

    def __init__(self, folder: Path) -> None:
        data = _read(folder / TOKENIZER)
        settings = _read(folder / TOKENIZER_CONFIG)
        description = data.get("decoder")
        self.backend_tokenizer = SimpleNamespace(decoder=description)
        self.added_tokens_decoder = {token["id"]: _added_token(token) for token in data["added_tokens"]}
        vocabulary = data["model"]["vocab"]
        # Unigram models list their pieces, others number them.
        pieces = vocabulary if isinstance(vocabulary, dict) else {piece: n for n, (piece, _) in enumerate(vocabulary)}
        self._pieces = {number: piece for piece, number in pieces.items()}
        self._pieces |= {number: token.content for number, token in self.added_tokens_decoder.items()}
        decode = _decoder(description)
        self.decode = decode and (lambda tokens, **_: decode([self._pieces[token] for token in tokens]))
        self.eos_token_id = self._end_token(settings)
        for number, token in settings.get("added_tokens_decoder", {}).items():
            if self.added_tokens_decoder.get(int(number)) != _added_token(token):
                raise ValueError(f"{TOKENIZER_CONFIG} adds tokens that {TOKENIZER} does not have")

    def convert_ids_to_tokens(self, tokens: Sequence[TokenId]) -> list[str | None]:
        return [self._pieces.get(token) for token in tokens]

    def _end_token(self, settings: dict[str, Any]) -> int | None:
        named = settings["eos_token"]  # if the entry is missing, the tokenizer's class may define a default
        content = named["content"] if isinstance(named, dict) else named
        if content is None:
            return None
        for number, token in self.added_tokens_decoder.items():
            if token.content == content:
                return number
        raise ValueError(f"the end token of {TOKENIZER_CONFIG} is none of {TOKENIZER}'s added tokens")


def _added_token(token: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(content=token["content"], special=token["special"])


def _decoder(description: dict[str, Any] | None) -> Callable[[list[str]], str] | None:
    """Return the decoder that `tokenizers` builds from its description, or None if the package is not installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    if description is None:
        return " ".join
    empty = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "decoder": description, "model": empty})).decoder.decode


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """Read the vocabulary of a model without `transformers`. The result equals that of `load_vocabulary`.

    Args:
        folder: Folder with tokenizer.json, tokenizer_config.json, config.json and, if the model has one,
            generation_config.json.

    Returns:
        The vocabulary. None if a file is missing or malformed, or relies on defaults of a `transformers` class. None
        also if the bytes of the tokens cannot be derived, but `transformers` is installed. Then use `load_vocabulary`.

    Raises:
        UnsupportedTokenizerError: The bytes of the tokens cannot be derived, and `transformers` is not installed.
    """
    try:
        config = _read(folder / CONFIG)
        config = config.get("text_config", config)
        tokenizer = _FileTokenizer(folder)
        # Without generation_config.json and without an entry in config.json, the model's class defines the end tokens.
        generated = (folder / GENERATION_CONFIG).is_file()
        ends = _read(folder / GENERATION_CONFIG).get("eos_token_id") if generated else config["eos_token_id"]
        return Vocabulary.from_tokenizer(tokenizer, config["vocab_size"], SimpleNamespace(eos_token_id=ends))
    except UnsupportedTokenizerError:
        if importlib.util.find_spec("transformers") is None:
            raise
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is no JSON object")
    return found
