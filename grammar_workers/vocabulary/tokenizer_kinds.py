"""Adapters for tokenizers of several packages: they get the attributes of a tokenizer of `transformers`.

`Vocabulary.from_tokenizer` uses the adapters. The packages are recognized by their methods, so none is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from grammar_workers.types import TokenId
from grammar_workers.vocabulary.token_bytes import UnsupportedTokenizerError

# Names of end tokens in published models. Tokenizers of `tokenizers` and `tiktoken` do not record which token it is.
_END_NAMES = "</s> <eos> <|end|> <|endoftext|> <|end_of_text|> <|eot_id|> <|im_end|> <|return|> <end_of_turn>"


class _Adapter:
    """The attributes that `token_bytes.read_tokens` reads, for a tokenizer with IDs below `size`."""

    def __init__(self, decoder: Any, size: int, added: Mapping[TokenId, Any], ends: Any, **attributes: Any) -> None:
        self._decoder, self._size = decoder, size
        self.added_tokens_decoder, self.eos_token_id = added, ends
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self._size

    def decode(self, tokens: list[TokenId], **_: Any) -> Any:
        return self._decoder.decode(tokens)


def adapted(tokenizer: Any) -> Any:
    """Return an object with the attributes of a `transformers` tokenizer that `token_bytes.read_tokens` reads.

    Args:
        tokenizer: A tokenizer of `transformers`, which is returned unchanged, `tokenizers`, `tiktoken`,
            `mistral-common` or `sentencepiece`.

    Raises:
        UnsupportedTokenizerError: The tokenizer is of another kind.
    """
    if hasattr(tokenizer, "added_tokens_decoder") or hasattr(tokenizer, "convert_ids_to_tokens"):
        return tokenizer
    if hasattr(tokenizer, "get_added_tokens_decoder"):  # tokenizers
        size, added = 1 + max(tokenizer.get_vocab().values(), default=-1), tokenizer.get_added_tokens_decoder()
        names: Any = lambda tokens: [tokenizer.id_to_token(token) for token in tokens]  # noqa: E731
        return _Adapter(tokenizer, size, added, _ends(added), backend_tokenizer=tokenizer, convert_ids_to_tokens=names)
    if hasattr(tokenizer, "decode_single_token_bytes"):  # tiktoken
        added = _special({tokenizer.encode_single_token(name): name for name in tokenizer.special_tokens_set})
        return _Adapter(tokenizer, tokenizer.n_vocab, added, _ends(added), model=tokenizer)
    if hasattr(tokenizer, "IsControl"):  # sentencepiece
        size, end = tokenizer.get_piece_size(), tokenizer.eos_id()
        added = _special({token: tokenizer.id_to_piece(token) for token in range(size) if tokenizer.IsControl(token)})
        names = tokenizer.id_to_piece
        return _Adapter(tokenizer, size, added, end, sp_model=tokenizer, convert_ids_to_tokens=names)
    inner = getattr(getattr(tokenizer, "instruct_tokenizer", None), "tokenizer", tokenizer)
    if hasattr(inner, "n_words"):  # mistral-common
        shape = SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=inner))
        return _Adapter(inner, inner.n_words, {}, inner.eos_id, tokenizer=shape)
    kind = type(tokenizer).__name__
    raise UnsupportedTokenizerError(f"{kind} is not a supported tokenizer. For a folder: Vocabulary.from_pretrained")


def width(tokenizer: Any) -> int:
    """Return the largest token ID of a tokenizer from `adapted`, plus 1."""
    ids = tokenizer.get_vocab().values() if hasattr(tokenizer, "get_vocab") else ()
    return max(len(tokenizer), 1 + max(ids, default=-1))


def _special(names: Mapping[TokenId, str]) -> dict[TokenId, Any]:
    return {token: SimpleNamespace(content=name, special=True) for token, name in names.items()}


def _ends(added: Mapping[TokenId, Any]) -> list[TokenId]:
    return [token for token, entry in added.items() if entry.special and entry.content in _END_NAMES.split()]
