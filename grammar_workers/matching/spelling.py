"""The tokens that spell a text whose repeated parts are stored once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from grammar_workers.errors import ArtifactError
from grammar_workers.pushdown.repeated_text import Repeated, Text, merged
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

_BLOCK_BYTES = 1024
"""Repeated texts are spelled in blocks of so many bytes."""


class TooManyTokensError(Exception):
    """A text takes more tokens than its reader has use for."""


def spell(text: Text, vocabulary: Vocabulary, limit: int) -> list[TokenId]:
    """The fewest tokens that spell a text, at most `limit`, else TooManyTokensError.

    Where a part is repeated often, tokens do not reach over its ends.
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
    """The parts of a text, short repetitions written out."""
    for part in text.flat():
        if isinstance(part, Repeated) and part.count * part.text.length <= _BLOCK_BYTES:
            yield from itertools.chain.from_iterable(itertools.repeat(list(_inlined(part.text)), part.count))
        else:
            yield part


def _spell_repeated(part: Repeated, vocabulary: Vocabulary, limit: int) -> list[TokenId]:
    """Whole blocks of repetitions, each spelled alike, then what is left."""
    each = max(_BLOCK_BYTES // part.text.length, 1)
    blocks, rest = divmod(part.count, each)
    block = spell(_times(part.text, each), vocabulary, limit // blocks)
    return block * blocks + spell(_times(part.text, rest), vocabulary, limit - len(block) * blocks)


def _times(text: Text, count: int) -> Text:
    return Text(text.length * count, text.parts * count)
