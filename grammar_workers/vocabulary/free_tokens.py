"""Tokens that change nothing: where a configuration reads most characters and stays what it is (inside a string).

Nine tokens in ten are made of such characters alone, and which ones depends on the characters, not on the grammar. So
their mask is worked out once per vocabulary and set of characters, together with the prefix tree of all other tokens:
a row of such a configuration is that mask and a walk of the few thousand nodes that are left.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_COLUMNS, TRIE_DEPTH, TRIE_END, TRIE_TOKEN
from grammar_workers.vocabulary.vocabulary import Vocabulary

LEAST_ASCII = 40
"""With fewer free ASCII characters than this, too few tokens are free to be worth a tree of the others."""


class Split(NamedTuple):
    """The tokens of a vocabulary by whether they are made of free characters alone."""

    mask: NDArray[np.uint32]
    """[words]: those that are"""
    tree: NDArray[np.int32]
    """The prefix tree of the others."""
    roots: NDArray[np.int32]
    """Its nodes at depth 0."""


@functools.lru_cache(maxsize=16)
def split(vocabulary: Vocabulary, ascii_characters: bytes, wide: bool) -> Split:
    """The tokens of a vocabulary by whether they are made of free characters alone.

    A character is free when it is in `ascii_characters`, or, with `wide`, from U+0080 on. A token may end inside one.
    """
    free = np.zeros(128, np.uint8)
    free[list(ascii_characters)] = 1
    mask = np.zeros(vocabulary.mask_words, np.uint32)
    tree = vocabulary.tree
    kept = np.zeros(len(tree) + 1, np.int32)
    scratch = np.zeros((4, vocabulary.longest_token + 1), np.int32)
    many = _mark(tree, vocabulary.same_bytes, free, wide, mask, kept, scratch)
    rest = np.empty((many, TRIE_COLUMNS), np.int32)
    _compact(tree, mask, kept, rest)
    mask.flags.writeable = rest.flags.writeable = False
    return Split(mask, rest, np.flatnonzero(rest[:, TRIE_DEPTH] == 0).astype(np.int32))


@njit(nogil=True, cache=True)
def _mark(tree, same, free, wide, mask, kept, scratch):  # type: ignore[no-untyped-def]
    """Fill `mask`, and `kept` with the number of each node among those that stay, or of the next one; how many stay."""
    nodes, left, low, high = scratch
    for node in range(tree.shape[0]):
        byte = tree[node, TRIE_BYTE]
        depth = tree[node, TRIE_DEPTH]
        # Per depth: the node, bytes left of the character after it (-1: not free), and bounds of the next one.
        before = left[depth - 1] if depth > 0 else 0
        after, next_low, next_high = -1, 0x80, 0xBF
        if before > 0:
            if low[depth - 1] <= byte <= high[depth - 1]:
                after = before - 1
        elif before == 0:
            if byte < 0x80:
                after = 0 if free[byte] else -1
            elif wide and 0xC2 <= byte <= 0xF4:
                after = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
                if byte == 0xE0:
                    next_low = 0xA0
                elif byte == 0xED:
                    next_high = 0x9F
                elif byte == 0xF0:
                    next_low = 0x90
                elif byte == 0xF4:
                    next_high = 0x8F
        nodes[depth] = node
        left[depth] = after
        low[depth] = next_low
        high[depth] = next_high
        token = tree[node, TRIE_TOKEN]
        if token < 0:
            continue
        if after >= 0:
            while token >= 0:
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                token = same[token]
        else:
            while depth >= 0 and kept[nodes[depth]] == 0:
                kept[nodes[depth]] = 1
                depth -= 1
    many = 0
    for node in range(kept.shape[0]):
        stays = kept[node]
        # Of a node that goes, the number of the next one that stays: what an TRIE_END turns into.
        kept[node] = many
        many += stays
    return many


@njit(nogil=True, cache=True)
def _compact(tree, mask, kept, rest):  # type: ignore[no-untyped-def]
    """Copy the nodes that stay into `rest`."""
    for node in range(tree.shape[0]):
        number = kept[node]
        if kept[node + 1] == number:
            continue
        token = tree[node, TRIE_TOKEN]
        if token >= 0 and mask[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
            token = -1
        rest[number, TRIE_BYTE] = tree[node, TRIE_BYTE]
        rest[number, TRIE_DEPTH] = tree[node, TRIE_DEPTH]
        rest[number, TRIE_END] = kept[tree[node, TRIE_END]]
        rest[number, TRIE_TOKEN] = token
