"""Splitter of the fixed texts of structural tags into plain text and special tokens."""

from __future__ import annotations

import functools
import re
from typing import TypeAlias

from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError
from grammar_workers.scalar_values import has_surrogate
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Nonempty texts and special tokens, in order.
Spelling: TypeAlias = tuple[str | TokenId, ...]


class Speller:
    """Splitter of fixed texts into plain text and special tokens, for one vocabulary.

    Args:
        vocabulary: The tokens of the model. Tokens that cannot be generated are ignored.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @functools.cached_property
    def _special_tokens(self) -> dict[str, TokenId]:
        """The special tokens that can be generated, by name; longest names first, so the longest match wins."""
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
        """Split a text at the names of special tokens, such as `<|im_start|>`.

        A lone surrogate raises InvalidSpecificationError. A character that the vocabulary cannot tokenize raises
        UnsatisfiableError.

        Args:
            text: The text.
            pointer: JSON Pointer of the text, for errors.

        Returns:
            The pieces in order: nonempty plain texts, and the IDs of special tokens. () for the empty text.
        """
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
        """Return the ID of the token with a given name.

        Args:
            name: The ID of the token, the name of a special token, or the text of a token.
            pointer: JSON Pointer of the name, for errors.

        Raises:
            InvalidSpecificationError: There is no such token, or it cannot be generated.
        """
        found = self._named(name)
        if found is None and isinstance(name, str):
            found = self._tokens_by_text.get(name.encode(errors="replace"))
        if found is None:
            raise InvalidSpecificationError(f"no token has the text {name!a}", pointer=pointer)
        if not self._vocabulary.can_generate(found):
            raise InvalidSpecificationError(f"{name!a} is no token that can be generated here", pointer=pointer)
        return found

    def _named(self, name: str | int) -> TokenId | None:
        return name if isinstance(name, int) else self._vocabulary.special_tokens.get(name)

    @functools.cached_property
    def _tokens_by_text(self) -> dict[bytes, TokenId]:
        tokens = reversed(range(len(self._vocabulary)))
        return {data: token for token in tokens if (data := self._vocabulary.token_bytes(token))}

    @functools.cached_property
    def every_token(self) -> frozenset[TokenId]:
        """IDs of all tokens that can be generated."""
        return frozenset(filter(self._vocabulary.can_generate, range(self._vocabulary.size)))

    def tokens_but(self, names: list[str | int], more: frozenset[TokenId], pointer: str) -> frozenset[TokenId]:
        """Return the IDs of all tokens that can be generated, without the excluded tokens.

        An unknown name raises InvalidSpecificationError.

        Args:
            names: IDs, names or texts of the excluded tokens. End-of-sequence tokens are ignored: they are never in the
                result.
            more: IDs of further excluded tokens.
            pointer: JSON Pointer of `names`, for errors.
        """
        excluded = set(more)
        for index, name in enumerate(names):
            if self._named(name) not in self._vocabulary.eos_token_ids:
                excluded.add(self.token(name, f"{pointer}/{index}"))
        return self.every_token - excluded


def rest_of(spelling: Spelling, beginning: Spelling) -> Spelling:
    """Return a split text without its beginning.

    Args:
        spelling: Plain texts and special tokens in order; not changed. It must start with `beginning`.
        beginning: A tuple of one plain text or one special token.
    """
    (first,) = beginning
    if isinstance(first, int):
        return spelling[1:]
    assert isinstance(spelling[0], str)
    return tuple(filter(lambda piece: piece != "", [spelling[0][len(first) :], *spelling[1:]]))
