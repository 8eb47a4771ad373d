"""The tokens of a vocabulary as seen from inside a free JSON string.

Nine tokens in ten lie wholly inside the body of a JSON string. Whether they are allowed there depends only on how many
characters are left, so their mask rows are made once per vocabulary. A token that closes the string is a run of
characters, the quote, and a *tail*; whether it is allowed depends on the tail alone, so these tokens are grouped by it
and a walk visits the few hundred tails instead of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.pushdown.instructions import RARE, TOLERATED_RUN
from grammar_workers.pushdown.json_text import QUOTE
from grammar_workers.vocabulary import trie
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_COLUMNS, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

_LINE_SEPARATORS = ("\u2028".encode(), "\u2029".encode())
_RARE_SPELLINGS = [spelling for rare in RARE for spelling in (rare.encode(), b"\\u%04x" % ord(rare))]
_STAYS, _CLOSES, _BREAKS = range(3)

STAYS_UNESCAPED = 64
"""See `mark_staying`."""


class Tolerance(NamedTuple):
    """The tokens that a state allows which tolerates every character of some class but RARE ones, wherever it leads."""

    mask: NDArray[np.uint32]
    """[words]: tokens of at most TOLERATED_RUN characters that stay inside the string"""
    rest: NDArray[np.int32]
    """The prefix tree of all other tokens, which have to be walked."""


class Runs(NamedTuple):
    """Tokens that go on inside a free string, and those that close it."""

    body: NDArray[np.uint32]
    """[longest + 1, words]: row n allows the tokens that stay inside the string and need at most n characters;
    `longest` counts those of closing tokens, too"""
    tails: NDArray[np.int32]
    """A prefix tree whose node 0 is the empty tail."""
    spans: NDArray[np.int64]
    """[nodes + 1]: where the tokens with a tail lie in the next two"""
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    """Characters before the quote."""

    @property
    def nbytes(self) -> int:
        arrays: tuple[NDArray[Any], ...] = self
        return sum(array.nbytes for array in arrays)


class StringSlice(NamedTuple):
    """See the module; kernels take it as it is."""

    runs: Runs
    """Those of all tokens."""
    any_character: Tolerance
    """For states that tolerate every character."""
    any_but_escaped: Tolerance
    """For those that tolerate every one but those with an escape and the line separators (what `.` matches)."""


def build(token_bytes: list[bytes], words: int) -> StringSlice:
    """The slice of a vocabulary; `words` is the length of its mask rows."""
    kinds, characters, quotes = _classify(*trie.pack(token_bytes))
    occupied = [token for token, data in enumerate(token_bytes) if data]
    ids = np.array(occupied, np.int64)
    staying = [token for token in occupied if kinds[token] == _STAYS]
    short = [
        token
        for token in staying
        if characters[token] <= TOLERATED_RUN and not any(part in token_bytes[token] for part in _RARE_SPELLINGS)
    ]
    plain = [token for token in short if not any(part in token_bytes[token] for part in (b"\\", *_LINE_SEPARATORS))]
    return StringSlice(
        _runs(
            occupied,
            [token_bytes[token] for token in occupied],
            (kinds[ids], characters[ids], quotes[ids]),
            words,
        ),
        _tolerance(token_bytes, short, words),
        _tolerance(token_bytes, plain, words),
    )


def runs_after(token_bytes: list[bytes], first: Collection[int], words: int) -> Runs:
    """The runs of what follows the first byte of the tokens that begin with one of the bytes `first`.

    They are for states from which such a byte leads into a free string, like those after a backslash.
    """
    begun = [token for token, data in enumerate(token_bytes) if data and data[0] in first]
    texts = [token_bytes[token][1:] for token in begun]
    kinds, characters, quotes = _classify(*trie.pack(texts))
    return _runs(begun, texts, (kinds, characters, quotes), words)


def mark_staying(tree: NDArray[np.int32], slices: StringSlice) -> NDArray[np.uint8]:
    """Which nodes of the prefix tree of all tokens end between two characters, and all tokens from there on stay.

    uint8 [nodes]: 0 for other nodes, else 1 + the most characters that follow; + STAYS_UNESCAPED where all of these
    tokens are tokens of `any_but_escaped`, otherwise they are of `any_character`. A state that tolerates so many of
    these characters allows all of these tokens where it is arrived at in such a node, whatever was read before.
    """
    return _mark_staying(tree, slices.any_character.mask, slices.any_but_escaped.mask)


def _runs(
    tokens: list[int],
    texts: list[bytes],
    classified: tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]],
    words: int,
) -> Runs:
    kinds, characters, quotes = classified
    ids = np.array(tokens, np.int32)
    longest = int(characters[kinds != _BREAKS].max(initial=0))
    body = np.zeros((longest + 1, words), np.uint32)
    for length in range(longest + 1):
        if length:
            body[length] = body[length - 1]
        fitting = ids[(kinds == _STAYS) & (characters == length)]
        np.bitwise_or.at(body[length], fitting >> 5, np.uint32(1) << (fitting & 31).astype(np.uint32))
    by_tail: dict[bytes, list[int]] = {b"": []}
    for place in np.flatnonzero(kinds == _CLOSES).tolist():
        by_tail.setdefault(texts[place][quotes[place] + 1 :], []).append(place)
    strings = sorted(tail for tail in by_tail if tail)
    tree = trie.build(strings)
    # Node 0 is the empty tail; the others move down by one level and one place.
    tails = np.empty((len(tree) + 1, TRIE_COLUMNS), np.int32)
    tails[0] = (0, 0, len(tree) + 1, -1)
    tails[1:] = tree
    tails[1:, [TRIE_DEPTH, TRIE_END]] += 1
    groups = [by_tail[b""], *([] if index < 0 else by_tail[strings[index]] for index in tree[:, TRIE_TOKEN].tolist())]
    spans = np.zeros(len(groups) + 1, np.int64)
    np.cumsum([len(group) for group in groups], out=spans[1:])
    places = np.array([place for group in groups for place in group], np.int64)
    return Runs(body, tails, spans, ids[places], characters[places])


def _tolerance(token_bytes: list[bytes], staying: list[int], words: int) -> Tolerance:
    mask = np.zeros(words, np.uint32)
    ids = np.array(staying, np.int64)
    np.bitwise_or.at(mask, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))
    inside = set(staying)
    first: dict[bytes, int] = {}
    for token, data in enumerate(token_bytes):
        if data and token not in inside:
            first.setdefault(data, token)
    return Tolerance(mask, trie.build_with_ids(first))


@njit(nogil=True, cache=True)
def _mark_staying(tree, any_mask, unescaped_mask):  # type: ignore[no-untyped-def]
    many = tree.shape[0]
    deepest = 0
    for depth in tree[:, TRIE_DEPTH]:
        deepest = max(deepest, depth)
    text = np.empty(deepest + 1, np.uint8)
    # Characters up to a node, an unfinished one included, and whether there is none.
    characters = np.zeros(many, np.int32)
    whole = np.zeros(many, np.bool_)
    for node in range(many):
        end = tree[node, TRIE_DEPTH] + 1
        text[end - 1] = tree[node, TRIE_BYTE]
        place = 0
        size = 1
        while place < end and size > 0:
            size = _character(text, place, end)
            place += size
            characters[node] += 1
        whole[node] = size > 0
    staying = np.zeros(many, np.uint8)
    flags = np.full(many, 3, np.uint8)
    most = characters.copy()
    for node in range(many - 1, -1, -1):
        token = tree[node, TRIE_TOKEN]
        if token >= 0:
            unescaped = unescaped_mask[token >> 5] >> (token & 31) & 1
            flags[node] = (any_mask[token >> 5] >> (token & 31) & 1) | unescaped << 1
        child = node + 1
        while child < tree[node, TRIE_END]:
            flags[node] &= flags[child]
            most[node] = max(most[node], most[child])
            child = tree[child, TRIE_END]
        if whole[node] and flags[node] & 1:
            staying[node] = 1 + most[node] - characters[node] + (flags[node] & 2) // 2 * STAYS_UNESCAPED
    return staying


@njit(nogil=True, cache=True)
def _classify(data, offsets):  # type: ignore[no-untyped-def]
    """What each token is when read from between two characters of a JSON string.

    Its kind, its characters (an unfinished one counts), the place of the quote.
    """
    many = offsets.shape[0] - 1
    kinds = np.empty(many, np.uint8)
    characters = np.zeros(many, np.int32)
    quotes = np.zeros(many, np.int32)
    for token in range(many):
        i = offsets[token]
        end = offsets[token + 1]
        kind = _STAYS
        count = 0
        while i < end:
            byte = data[i]
            if byte == QUOTE:
                kind = _CLOSES
                quotes[token] = i - offsets[token]
                break
            size = _character(data, i, end)
            if size == 0:
                kind = _BREAKS
                break
            count += 1
            i += abs(size)
        kinds[token] = kind
        characters[token] = count
    return kinds, characters, quotes


@njit(nogil=True, cache=True)
def _character(data, i, end):  # type: ignore[no-untyped-def]
    """Bytes of the string character at i; 0 when none begins like this, -n when only its first n lie before `end`."""
    byte = data[i]
    if byte < 0x20:
        return 0
    if byte == 92:
        return _escape(data, i, end)
    if byte < 0x80:
        return 1
    low, high = 0x80, 0xBF
    if 0xC2 <= byte <= 0xDF:
        size = 2
    elif 0xE0 <= byte <= 0xEF:
        size = 3
        if byte == 0xE0:
            low = 0xA0
        elif byte == 0xED:
            high = 0x9F
    elif 0xF0 <= byte <= 0xF4:
        size = 4
        if byte == 0xF0:
            low = 0x90
        elif byte == 0xF4:
            high = 0x8F
    else:
        return 0
    for j in range(1, min(size, end - i)):
        following = data[i + j]
        if not low <= following <= high:
            return 0
        low, high = 0x80, 0xBF
    return size if size <= end - i else i - end


@njit(nogil=True, cache=True)
def _escape(data, i, end):  # type: ignore[no-untyped-def]
    """The same for an escape sequence in its one canonical spelling (see `json_text`)."""
    if i + 1 >= end:
        return -1
    kind = data[i + 1]
    if kind == 34 or kind == 92 or kind == 98 or kind == 102 or kind == 110 or kind == 114 or kind == 116:
        return 2
    if kind != 117:
        return 0
    for j in range(2, min(6, end - i)):
        digit = data[i + j]
        if j < 4:
            if digit != 48:
                return 0
        elif j == 4:
            if digit != 48 and digit != 49:
                return 0
        else:
            # \u0008, 9, a, c, d have short escapes; every other control character is spelled like this.
            high = data[i + 4]
            hexadecimal = 48 <= digit <= 57 or 97 <= digit <= 102
            if not hexadecimal or (high == 48 and (digit in (56, 57, 97, 99, 100))):
                return 0
    return 6 if end - i >= 6 else i - end
