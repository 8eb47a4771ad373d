"""Slices: the tokens of a vocabulary that stay within a set of characters, and the prefix tree of those that do not.

Nine tokens in ten lie wholly inside a JSON string or a comment, and which ones depends on the characters that may stand
there, not on the grammar. So their mask is worked out once per vocabulary and set of characters: a row of such a
configuration is that mask, and a walk of the few thousand nodes, or few hundred, that are left.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numba import int16, int32, njit
from numpy.typing import NDArray

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.utf8 import ByteRanges, utf8_sequences
from grammar_workers.numba_options import OPTIONS, called_with
from grammar_workers.pushdown.byte_classes import LEADS_OUT
from grammar_workers.pushdown.escapes import ESCAPED
from grammar_workers.pushdown.instructions import TOLERATED_RUN
from grammar_workers.pushdown.json_text import QUOTE, encode_string_body
from grammar_workers.pushdown.strings import COMMON, UNESCAPED
from grammar_workers.vocabulary import trie
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

BETWEEN = 0
"""The state of a `character_table` between two characters."""
STAYS_UNESCAPED = 64
"""See `mark_staying`."""
_ANY = 1 << 30


class Slice(NamedTuple):
    """The tokens of a vocabulary by whether they stay within a set of characters; they may end inside of one."""

    mask: NDArray[np.uint32]
    """[words]: those that do"""
    rest: NDArray[np.int32]
    """The prefix tree of the others."""


class StringSlices(NamedTuple):
    """What may be read inside a JSON string; kernels take it as it is."""

    body: NDArray[np.uint32]
    """[longest + 1, words]: row n allows the tokens that stay inside the string and need at most n characters"""
    closing: NDArray[np.int32]
    """The prefix tree of tokens with a quote."""
    tails: NDArray[np.int32]
    """The prefix tree of these tokens from the quote on that ends the string, TRIE_TOKEN holding the lowest token."""
    same_tail: NDArray[np.int32]
    """[V]: the next token with the same tail, or -1"""
    unfolded: Slice
    """Of the tokens without quotes and backslashes; folded trees leave out the rest."""
    any_character: Slice
    """Of the tokens of at most TOLERATED_RUN characters: for states that tolerate every character but RARE ones."""
    any_but_escaped: Slice
    """For those that tolerate neither what has an escape nor the line separators (what `.` matches)."""


def character_table(sequences: Iterable[ByteRanges]) -> NDArray[np.int16]:
    """The automaton that reads characters spelled like this one after the other, int16 [states, 256]: the next state.

    Ranges of bytes after the same beginning are equal or disjoint. -1 is no state.
    """
    rows = [np.full(256, -1, np.int16)]
    for sequence in sequences:
        state = BETWEEN
        for low, high in sequence[:-1]:
            if rows[state][low] < 0:
                rows[state][low : high + 1] = len(rows)
                rows.append(np.full(256, -1, np.int16))
            state = int(rows[state][low])
        low, high = sequence[-1]
        rows[state][low : high + 1] = BETWEEN
    return np.stack(rows)


@functools.lru_cache(maxsize=8)
def string_table(characters: Charset) -> NDArray[np.int16]:
    """The `character_table` of a JSON string of these characters, each in its one spelling."""
    plain = charset.subtract(characters, ESCAPED)
    escaped = charset.intersect(characters, ESCAPED)
    spelled = [encode_string_body(chr(code)) for low, high in escaped for code in range(low, high + 1)]
    return character_table(
        [sequence for low, high in plain for sequence in utf8_sequences(low, high)]
        + [tuple((byte, byte) for byte in spelling) for spelling in spelled]
    )


def split(tree: NDArray[np.int32], node_of: NDArray[np.int32], table: NDArray[np.int16], most: int = _ANY) -> Slice:
    """The slice of the tokens that an automaton can read, with `most` characters at most.

    `tree` is the prefix tree of all tokens and `node_of` (int32 [V]) the node in which each ends, or -1.
    """
    states, characters = _read(tree, table)
    stays = (states >= 0) & (characters <= most)
    return Slice(_mask(node_of, stays), _pruned(tree, ~stays))


def split_strings(tree: NDArray[np.int32], node_of: NDArray[np.int32], token_bytes: Sequence[bytes]) -> StringSlices:
    """What may be read inside a string; arguments as above, and what automata read of each token."""
    states, characters = _read(tree, string_table(charset.ALL))
    longest = int(characters[states >= 0].max(initial=0))
    body = [_mask(node_of, (states >= 0) & (characters <= many)) for many in range(longest + 1)]
    return StringSlices(
        np.stack(body),
        _without(tree, node_of, [QUOTE]).rest,
        *_tails(token_bytes, string_table(charset.ALL)),
        _without(tree, node_of, LEADS_OUT),
        split(tree, node_of, string_table(COMMON), TOLERATED_RUN),
        split(tree, node_of, string_table(UNESCAPED), TOLERATED_RUN),
    )


def mark_staying(tree: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Which nodes of the prefix tree of all tokens end between two characters, and all tokens from there on stay.

    uint8 [nodes]: 0 for other nodes, else 1 + the most characters that follow; + STAYS_UNESCAPED where all of these
    tokens are tokens of `any_but_escaped`, otherwise they are of `any_character`. A state that tolerates so many of
    these characters allows all of these tokens where it is arrived at in such a node, whatever was read before.
    """
    ends = tree[:, TRIE_END]
    spans = np.stack([np.arange(len(tree)), ends], axis=1)
    staying = np.zeros(len(tree), np.uint8)
    for characters_of, mark in ((COMMON, 1), (UNESCAPED, 1 + STAYS_UNESCAPED)):
        states, characters = _read(tree, string_table(characters_of))
        leaves = (tree[:, TRIE_TOKEN] >= 0) & ((states < 0) | (characters > TOLERATED_RUN))
        before = np.append(0, np.cumsum(leaves))
        stays = (states == BETWEEN) & (before[spans[:, 0]] == before[ends])
        most = np.maximum.reduceat(np.append(characters, 0), spans.reshape(-1))[::2]
        staying[stays] = (mark + most - characters)[stays]
    return staying


def _without(tree: NDArray[np.int32], node_of: NDArray[np.int32], marks: Sequence[int]) -> Slice:
    """The slice of the tokens that have none of these bytes."""
    table = np.full((1, 256), BETWEEN, np.int16)
    table[0, marks] = -1
    return split(tree, node_of, table)


def _tails(token_bytes: Sequence[bytes], table: NDArray[np.int16]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`tails` and `same_tail` of a vocabulary, `table` being that of all characters of a string."""
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    same = np.full(len(token_bytes), -1, np.int32)
    for token, data in enumerate(token_bytes):
        state = BETWEEN if QUOTE in data else -1
        for place, byte in enumerate(data):
            if state < 0:
                break
            if state == BETWEEN and byte == QUOTE:
                tail = data[place:]
                if first.setdefault(tail, token) != token:
                    same[last[tail]] = token
                last[tail] = token
                break
            state = int(table[state, byte])
    return trie.build_with_ids(first), same


def _mask(node_of: NDArray[np.int32], nodes: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """The mask row of the tokens that end in one of `nodes` (bool [nodes])."""
    held = np.zeros(-(-len(node_of) // 32) * 32, np.bool_)
    held[: len(node_of)] = np.append(nodes, False)[node_of]
    return np.packbits(held, bitorder="little").view(np.uint32)


def _pruned(tree: NDArray[np.int32], nodes: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The prefix tree of the tokens that end in one of `nodes`."""
    ends_here = nodes & (tree[:, TRIE_TOKEN] >= 0)
    before = np.append(0, np.cumsum(ends_here))
    kept = before[tree[:, TRIE_END]] > before[:-1]
    rest = tree[kept]
    rest[:, TRIE_END] = np.append(0, np.cumsum(kept))[rest[:, TRIE_END]]
    rest[~ends_here[kept], TRIE_TOKEN] = -1
    return rest


@called_with(int32[:, ::1], int16[:, ::1])
@njit(**OPTIONS)
def _read(tree, table):  # type: ignore[no-untyped-def]
    """For each node the state in which it is arrived at, or -1, and how many characters have begun up to there."""
    many = tree.shape[0]
    states = np.empty(many, np.int16)
    characters = np.empty(many, np.int32)
    path = np.empty(many + 1, np.int32)
    for node in range(many):
        depth = tree[node, TRIE_DEPTH]
        path[depth] = node
        state, begun = np.int16(BETWEEN), np.int32(0)
        if depth > 0:
            state, begun = states[path[depth - 1]], characters[path[depth - 1]]
        states[node] = table[state, tree[node, TRIE_BYTE]] if state >= 0 else np.int16(-1)
        characters[node] = begun + (state == BETWEEN)
    return states, characters
