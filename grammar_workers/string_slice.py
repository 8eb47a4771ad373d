"""The tokens of a vocabulary as seen from inside a free JSON string.

Nine tokens in ten lie wholly inside the body of a JSON string. Whether they are allowed there depends only on how many
characters are left, so their mask rows are made once per vocabulary. A token that closes the string is a run of
characters, the quote, and a *tail*; whether it is allowed depends on the tail alone, so these tokens are grouped by it
and a walk visits the few hundred tails instead of the vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers import prefix_tree

RARE = "\x1c\x1d\x1e\x1f\x85\ufeff"
"""Characters that are white space to one dialect of regular expressions only, so neither in `\\s` nor in `\\S`."""
_LINE_SEPARATORS = ("\u2028".encode(), "\u2029".encode())
_RARE_SPELLINGS = [spelling for rare in RARE for spelling in (rare.encode(), b"\\u%04x" % ord(rare))]
_STAYS, _CLOSES, _BREAKS = range(3)


LONGEST_RUN = 32
"""Characters of the longest token whose row is precomputed for states that merely tolerate all characters."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The tokens that a state allows which tolerates every character of some class but RARE ones, wherever it leads.

    `mask` uint32 [words]: tokens of at most LONGEST_RUN characters that stay inside the string; `rest`: the prefix tree
    of all other tokens, which have to be walked.
    """

    mask: NDArray[np.uint32]
    rest: NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class StringSlice:
    """See the module. `body` uint32 [longest + 1, words]: row n allows the tokens that need at most n characters
    (`longest` counts those of closing tokens, too).

    `tails` int32 [nodes, 4] (a prefix tree whose node 0 is the empty tail), `spans` int64 [nodes + 1] into `tokens` and
    `lengths` (int32: characters before the quote). `any_character` and `any_but_escaped` are for states that tolerate
    every character, or every one but those with an escape and the line separators (what `.` matches). `condensed` is a
    prefix tree that leads from inside a free string wherever the whole vocabulary does: of the tokens that stay inside
    it, it holds one for each number of characters and unfinished last character.
    """

    body: NDArray[np.uint32]
    tails: NDArray[np.int32]
    spans: NDArray[np.int64]
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    any_character: Tolerance
    any_but_escaped: Tolerance
    condensed: NDArray[np.int32]

    @functools.cached_property
    def tables(self) -> tuple[NDArray[Any], ...]:
        """All arrays as the plain tuple that kernels take."""
        tolerances = (self.any_character, self.any_but_escaped)
        return (
            *(self.body, self.tails, self.spans, self.tokens, self.lengths),
            *(array for tolerance in tolerances for array in (tolerance.mask, tolerance.rest)),
            self.condensed,
        )


def build(token_bytes: list[bytes], words: int) -> StringSlice:
    """The slice of a vocabulary; `words` is the length of its mask rows."""
    data, offsets = prefix_tree.pack(token_bytes)
    kinds, characters, quotes, unfinished = _classify(data, offsets)
    occupied = np.diff(offsets) > 0
    staying = np.flatnonzero((kinds == _STAYS) & occupied)
    longest = int(characters[(kinds != _BREAKS) & occupied].max(initial=0))
    body = np.zeros((longest + 1, words), np.uint32)
    for length in range(longest + 1):
        if length:
            body[length] = body[length - 1]
        fitting = staying[characters[staying] == length]
        np.bitwise_or.at(body[length], fitting >> 5, np.uint32(1) << (fitting & 31).astype(np.uint32))
    closing = np.flatnonzero((kinds == _CLOSES) & occupied)
    by_tail: dict[bytes, list[int]] = {b"": []}
    for token in closing.tolist():
        by_tail.setdefault(token_bytes[token][quotes[token] + 1 :], []).append(token)
    strings = sorted(tail for tail in by_tail if tail)
    tree = prefix_tree.build(strings)
    # Node 0 is the empty tail; the others move down by one level and one place.
    tails = np.empty((len(tree) + 1, 4), np.int32)
    tails[0] = (0, 0, len(tree) + 1, -1)
    tails[1:] = tree
    tails[1:, 1:3] += 1
    groups = [by_tail[b""], *([] if index < 0 else by_tail[strings[index]] for index in tree[:, 3].tolist())]
    tokens = np.array([token for group in groups for token in group], np.int32)
    spans = np.zeros(len(groups) + 1, np.int64)
    np.cumsum([len(group) for group in groups], out=spans[1:])
    short = [
        token
        for token in staying[characters[staying] <= LONGEST_RUN].tolist()
        if not any(spelling in token_bytes[token] for spelling in _RARE_SPELLINGS)
    ]
    plain = [token for token in short if not any(part in token_bytes[token] for part in (b"\\", *_LINE_SEPARATORS))]
    return StringSlice(
        body,
        tails,
        spans,
        tokens,
        characters[tokens].astype(np.int32),
        _tolerance(token_bytes, short, words),
        _tolerance(token_bytes, plain, words),
        _condensed(token_bytes, staying.tolist(), characters, unfinished),
    )


def _condensed(
    token_bytes: list[bytes], staying: list[int], characters: NDArray[np.int32], unfinished: NDArray[np.int32]
) -> NDArray[np.int32]:
    like: dict[tuple[int, bytes], int] = {}
    for token in staying:
        data = token_bytes[token]
        like.setdefault((int(characters[token]), data[len(data) - unfinished[token] :]), token)
    others = set(range(len(token_bytes))).difference(staying)
    return prefix_tree.build_with_ids(
        {token_bytes[token]: token for token in (*like.values(), *others) if token_bytes[token]}
    )


def _tolerance(token_bytes: list[bytes], staying: list[int], words: int) -> Tolerance:
    mask = np.zeros(words, np.uint32)
    ids = np.array(staying, np.int64)
    np.bitwise_or.at(mask, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))
    inside = set(staying)
    first: dict[bytes, int] = {}
    for token, data in enumerate(token_bytes):
        if data and token not in inside:
            first.setdefault(data, token)
    return Tolerance(mask, prefix_tree.build_with_ids(first))


@njit(nogil=True, cache=True)
def _classify(data, offsets):  # type: ignore[no-untyped-def]
    """What each token is when read from between two characters of a JSON string.

    Its kind, its characters (an unfinished one counts), the place of the quote, the bytes of an unfinished character.
    """
    many = offsets.shape[0] - 1
    kinds = np.empty(many, np.uint8)
    characters = np.zeros(many, np.int32)
    quotes = np.zeros(many, np.int32)
    unfinished = np.zeros(many, np.int32)
    for token in range(many):
        i = offsets[token]
        end = offsets[token + 1]
        kind = _STAYS
        count = 0
        while i < end:
            byte = data[i]
            if byte == 34:
                kind = _CLOSES
                quotes[token] = i - offsets[token]
                break
            size = _character(data, i, end)
            if size == 0:
                kind = _BREAKS
                break
            count += 1
            if size < 0:
                unfinished[token] = -size
            i += abs(size)
        kinds[token] = kind
        characters[token] = count
    return kinds, characters, quotes, unfinished


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
