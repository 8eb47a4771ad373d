"""Texts of a specification as they are generated: characters, and the special tokens that they name."""

from __future__ import annotations

import functools
import re
from typing import TypeAlias

from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

Spelling: TypeAlias = tuple[str | TokenId, ...]
"""Texts, none of them empty, and special tokens in between."""


class Speller:
    """Spells texts in one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @functools.cached_property
    def _special_tokens(self) -> dict[str, TokenId]:
        """The special tokens that may be generated, by name; of several names that fit the longest comes first."""
        vocabulary = self._vocabulary
        named = sorted(vocabulary.special_tokens.items(), key=lambda item: -len(item[0]))
        return {
            name: token
            for name, token in named
            if name and vocabulary.is_special(token) and vocabulary.can_generate(token)
        }

    @functools.cached_property
    def _any_name(self) -> re.Pattern[str] | None:
        names = self._special_tokens
        return re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def spell(self, text: str, pointer: str) -> Spelling:
        """Raises InvalidSpecificationError for lone surrogates, UnsatisfiableError for what the vocabulary lacks."""
        pieces: list[str | TokenId] = []
        for piece in self._any_name.split(text) if self._any_name else [text]:
            if piece in self._special_tokens:
                pieces.append(self._special_tokens[piece])
            elif piece:
                self._check(piece, pointer)
                pieces.append(piece)
        return tuple(pieces)

    def _check(self, text: str, pointer: str) -> None:
        if has_surrogate(text):
            raise InvalidSpecificationError("a lone surrogate, which no text holds", pointer=pointer)
        spellable = self._vocabulary.spellable
        for character in text:
            if spellable is not None and character not in spellable:
                raise UnsatisfiableError(f"the vocabulary cannot spell {character!r}", pointer=pointer)

    def token(self, name: str | int, pointer: str) -> TokenId:
        """The token that a format names by its id or its text; raises InvalidSpecificationError."""
        vocabulary = self._vocabulary
        found: TokenId | None
        if isinstance(name, int):
            found = name
        else:
            found = vocabulary.special_tokens.get(name)
            if found is None:
                found = self._tokens_by_text.get(name.encode(errors="replace"))
        if found is None:
            raise InvalidSpecificationError(f"no token has the text {name!a}", pointer=pointer)
        if not vocabulary.can_generate(found):
            raise InvalidSpecificationError(f"{name!a} is no token that can be generated here", pointer=pointer)
        return found

    @functools.cached_property
    def _tokens_by_text(self) -> dict[bytes, TokenId]:
        tokens = reversed(range(len(self._vocabulary)))
        return {data: token for token in tokens if (data := self._vocabulary.token_bytes(token))}

    @functools.cached_property
    def every_token(self) -> frozenset[TokenId]:
        """All tokens that can be generated."""
        return frozenset(filter(self._vocabulary.can_generate, range(self._vocabulary.size)))

    def tokens_but(self, names: list[str | int], more: frozenset[TokenId], pointer: str) -> frozenset[TokenId]:
        """All tokens but these; end tokens may be named, for they are none of them."""
        excluded = set(more)
        for index, name in enumerate(names):
            if isinstance(name, int) and name in self._vocabulary.eos_token_ids:
                continue
            if isinstance(name, str) and self._vocabulary.special_tokens.get(name) in self._vocabulary.eos_token_ids:
                continue
            excluded.add(self.token(name, f"{pointer}/{index}"))
        return self.every_token - excluded


def rest_of(spelling: Spelling, beginning: Spelling) -> Spelling:
    """What of a spelling follows one that it begins with."""
    (first,) = beginning
    if isinstance(first, int):
        return spelling[1:]
    assert isinstance(spelling[0], str)
    return tuple(filter(lambda piece: piece != "", [spelling[0][len(first) :], *spelling[1:]]))
