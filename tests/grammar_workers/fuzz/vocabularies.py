"""Random small vocabularies: parts of characters and of escapes, missing bytes, tokens across the syntax of JSON."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence

from grammar_workers import Vocabulary

_SYNTAX = '{}[]":, \\0123456789.-+eEtrufalsnbcd/ABCDEF\n\t'
_AWKWARD = (
    *(b'": "', b'"a', b'",', b'": ', b'", "', b", ", b": ", b"{}", b"[]", b'"}', b'{"', b"]}", b'""', b"}}"),
    *(
        b"\\u",
        b"u00",
        b"\\u00",
        b"\\\\",
        b'\\"',
        b"\\n",
        b"\\",
        b"u",
        b"00",
        b"0.",
        b"-1",
        b"1e",
        b"e+",
        b"tru",
        b"null",
    ),
    *(b"\xc3", b"\xc3a", b"\xe5\x90", b"\x90", b"\xf0\x9f", b"\x9f\x98", b'\x98\x80"', b"\xff", b"  ", b" \n"),
)
_TOOL = "<tool>"


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The arguments of a `Vocabulary`; `tokens` are bytes, or None for special ones."""

    tokens: tuple[bytes | None, ...]
    ends: tuple[int, ...]
    special: tuple[tuple[str, int], ...] = ()
    size: int | None = None

    def vocabulary(self) -> Vocabulary:
        return _made(self)


@functools.lru_cache(maxsize=64)
def _made(tokens: Tokens) -> Vocabulary:
    return Vocabulary(tokens.tokens, tokens.ends, dict(tokens.special), tokens.size)


def every_byte() -> Tokens:
    """The simplest vocabulary: a token for each byte, and an end."""
    return Tokens((*(bytes([byte]) for byte in range(256)), None), (256,))


def draw_tokens(rng: random.Random, texts: Sequence[str]) -> Tokens:
    """A vocabulary that can spell most of `texts`, in several ways."""
    samples = [data for text in texts if (data := text.encode())]
    characters = set("".join(texts)) | set(_SYNTAX)
    used = {bytes([byte]) for character in characters for byte in character.encode()}
    kind = rng.random()
    if kind < 0.4:
        found = {bytes([byte]) for byte in range(256)}
    elif kind < 0.75:
        found = {character.encode() for character in characters}
        # Parts of characters beside the whole ones.
        found |= set(rng.sample(sorted(used), min(len(used), rng.randrange(5))))
    else:
        found = used
    for _ in range(rng.choice([0, 0, 0, 0, 1, 2])):
        found.discard(rng.choice(sorted(used | {character.encode() for character in characters})))
    tokens = [*sorted(found), *_longer(rng, samples)]
    if rng.random() < 0.5:
        rng.shuffle(tokens)
    return _with_ends(rng, tokens)


def _longer(rng: random.Random, samples: list[bytes]) -> list[bytes]:
    """Pieces of the texts, cut anywhere, and pieces of JSON; some of them twice."""
    found = rng.sample(_AWKWARD, rng.choice([0, 2, 8]))
    for _ in range(rng.choice([0, 3, 12]) if samples else 0):
        sample = rng.choice(samples)
        start = rng.randrange(len(sample))
        found.append(sample[start : start + rng.choice([1, 2, 2, 3, 4, 8])])
    return found


def _with_ends(rng: random.Random, tokens: Sequence[bytes]) -> Tokens:
    every: list[bytes | None] = [*tokens]
    ends = []
    for _ in range(rng.choice([1, 1, 1, 2, 3, 0])):
        ends.append(len(every))
        every.append(rng.choice([None, b"</s>"]))
    special = []
    if rng.random() < 0.2:
        special.append((_TOOL, len(every)))
        every += [None, b""]
    size = len(every) + rng.choice([0, 0, 1, 31, 40])
    return Tokens(tuple(every), tuple(ends), tuple(special), size)


def tokenizations(vocabulary: Vocabulary, data: bytes, rng: random.Random, many: int) -> list[list[int]]:
    """Ways to spell `data`: the shortest one, the greediest one, and random ones; none where there is none."""
    shortest = vocabulary.encode(data)
    if shortest is None:
        return []
    found = [shortest]
    ways = _ways(vocabulary, data)
    found.append(_walk(ways, len(data), lambda options: max(options)))
    found.append(_walk(ways, len(data), lambda options: min(options)))
    found += [_walk(ways, len(data), rng.choice) for _ in range(many)]
    return found


def _ways(vocabulary: Vocabulary, data: bytes) -> list[list[tuple[int, int]]]:
    """Per position the (length, token) pairs after which the rest can be spelled."""
    by_bytes = _ids_by_bytes(vocabulary)
    ways: list[list[tuple[int, int]]] = [[] for _ in data]
    for start in range(len(data) - 1, -1, -1):
        for length in range(1, min(vocabulary.longest_token, len(data) - start) + 1):
            if start + length == len(data) or ways[start + length]:
                ways[start] += [(length, token) for token in by_bytes.get(data[start : start + length], ())]
    return ways


def _walk(ways: list[list[tuple[int, int]]], end: int, choose: object) -> list[int]:
    tokens, place = [], 0
    while place < end:
        length, token = choose(ways[place])  # type: ignore[operator]
        tokens.append(token)
        place += length
    return tokens


@functools.lru_cache(maxsize=64)
def _ids_by_bytes(vocabulary: Vocabulary) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for token in range(vocabulary.size):
        if data := getattr(vocabulary, "read_bytes", vocabulary.token_bytes)(token):
            found.setdefault(data, []).append(token)
    return found


def can_spell(vocabulary: Vocabulary, text: str) -> bool:
    """Whether each character has tokens of its own, which is what is promised for vocabularies without all bytes."""
    spelled = _characters(vocabulary)
    return spelled is None or spelled.issuperset(text)


@functools.lru_cache(maxsize=64)
def _characters(vocabulary: Vocabulary) -> frozenset[str] | None:
    """The characters with tokens of their own; None where there is a token for every byte."""
    known = _ids_by_bytes(vocabulary)
    if all(bytes([byte]) in known for byte in range(256)):
        return None
    return frozenset(text for data in known if len(text := data.decode(errors="ignore")) == 1 and text.encode() == data)
