"""Tokenization of a `Text`: a byte string whose repeated parts are stored once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from grammar_workers.errors import ArtifactError, LimitExceededError
from grammar_workers.pushdown.repeated_text import Repeated, Text, merged
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Repeated texts are tokenized in blocks of this size.
_BLOCK_BYTES = 1024
# Maximum length of a completion that is computed byte by byte: about one second of work.
_MOST_BYTES = 1 << 18


class TooManyTokensError(Exception):
    """A text needs more tokens than the caller accepts. The error has no message: callers must catch it."""


def check_length(length: int, most: int) -> None:
    """Check the length of a completion (text up to the end of an output) before its bytes are put together.

    Args:
        length: Length of the completion, in bytes.
        most: Maximum length that the caller accepts, in bytes.

    Raises:
        TooManyTokensError: The completion is longer than `most`.
        LimitExceededError: The completion has more than 256 KiB.
    """
    if length > most:
        raise TooManyTokensError
    if length > _MOST_BYTES:
        raise LimitExceededError(f"the shortest way to an end has more than {_MOST_BYTES} bytes")


def spell(text: Text, vocabulary: Vocabulary, limit: int) -> list[TokenId]:
    """Tokenize a text (a byte string whose repeated parts are stored once) with as few tokens as possible.

    A part that is repeated often is tokenized in blocks of about 1,024 bytes. No token crosses the end of a block.

    Args:
        text: The text. Its parts are bytes, IDs of tokens without bytes, repeated texts, or nested texts. These token
            IDs are returned unchanged.
        vocabulary: The vocabulary.
        limit: Maximum number of tokens.

    Returns:
        The token IDs in order. Empty for an empty text.

    Raises:
        TooManyTokensError: The text needs more than `limit` tokens.
        ArtifactError: The vocabulary cannot tokenize the text. This happens only if the stored automaton is damaged.
    """
    if text.length > limit * vocabulary.longest_token:
        raise TooManyTokensError
    tokens: list[TokenId] = []
    for part in merged(_inlined(text)):
        if isinstance(part, bytes):
            spelled = vocabulary.encode(part)
            if spelled is None:
                raise ArtifactError("a way to an end that the vocabulary cannot spell")
            tokens += spelled
        elif isinstance(part, Repeated):
            tokens += _spell_repeated(part, vocabulary, limit - len(tokens))
        else:
            tokens.append(part)
        if len(tokens) > limit:
            raise TooManyTokensError
    return tokens


def _inlined(text: Text) -> Iterator[bytes | TokenId | Repeated]:
    """Yield the parts of a text, with short repetitions written out."""
    for part in text.flat():
        if isinstance(part, Repeated) and part.count * part.text.length <= _BLOCK_BYTES:
            yield from itertools.chain.from_iterable(itertools.repeat(list(_inlined(part.text)), part.count))
        else:
            yield part


def _spell_repeated(part: Repeated, vocabulary: Vocabulary, limit: int) -> list[TokenId]:
    """Tokenize whole blocks of repetitions in the same way, then the remaining repetitions."""
    each = max(_BLOCK_BYTES // part.text.length, 1)
    blocks, rest = divmod(part.count, each)
    block = spell(_times(part.text, each), vocabulary, limit // blocks)
    return block * blocks + spell(_times(part.text, rest), vocabulary, limit - len(block) * blocks)


def _times(text: Text, count: int) -> Text:
    return Text(text.length * count, text.parts * count)
