"""Flat, preorder prefix trees over byte strings: the array that a mask row is walked over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN, TRIE_STAYING, TRIE_COLUMNS = range(6)
"""Columns of a prefix tree: the byte read on entering a node, its depth (0 for first bytes), the first node after its
subtree, the number of the string that ends in it (or -1), a mark of `slices.mark_staying` (or 0)."""


class Trees(NamedTuple):
    """The prefix tree of all tokens and what goes with it; kernels take it as it is."""

    tree: NDArray[np.int32]
    """[nodes, TRIE_COLUMNS]: TRIE_TOKEN holds the lowest id with these bytes"""
    same_bytes: NDArray[np.int32]
    """[V]: the next token id with the same bytes, or -1"""
    roots: NDArray[np.int32]
    """See `roots_of`."""


def pack(strings: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All bytes one after the other (uint8) and the offset of each string in them (int64 [n + 1])."""
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum([len(string) for string in strings], out=offsets[1:])
    return np.frombuffer(b"".join(strings), np.uint8), offsets


def build(ids: Mapping[bytes, int]) -> NDArray[np.int32]:
    """The prefix tree of the keys of `ids`, none empty: int32 [nodes, TRIE_COLUMNS] in preorder.

    TRIE_TOKEN holds their values, TRIE_STAYING zeros.
    """
    strings = sorted(ids)
    data, offsets = pack(strings)
    tree = np.zeros((len(data), TRIE_COLUMNS), np.int32)
    many = _build(data, offsets, np.array([ids[string] for string in strings], np.int32), tree)
    return tree[:many].copy()


def roots_of(tree: NDArray[np.int32]) -> NDArray[np.int32]:
    """The node at depth 0 for each byte, or -1: int32 [256]."""
    nodes = np.flatnonzero(tree[:, TRIE_DEPTH] == 0)
    roots = np.full(256, -1, np.int32)
    roots[tree[nodes, TRIE_BYTE]] = nodes
    return roots


@njit(nogil=True, cache=True)
def _build(data, offsets, numbers, tree):  # type: ignore[no-untyped-def]
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    open_nodes = np.empty(longest + 1, np.int64)
    many = 0
    depth = 0
    for i in range(offsets.shape[0] - 1):
        start = offsets[i]
        length = offsets[i + 1] - start
        shared = 0
        if i > 0:
            previous = offsets[i - 1]
            limit = min(length, start - previous)
            while shared < limit and data[previous + shared] == data[start + shared]:
                shared += 1
        while depth > shared:
            depth -= 1
            tree[open_nodes[depth], TRIE_END] = many
        for j in range(shared, length):
            tree[many, TRIE_BYTE] = data[start + j]
            tree[many, TRIE_DEPTH] = j
            tree[many, TRIE_TOKEN] = -1
            open_nodes[j] = many
            many += 1
        depth = length
        tree[open_nodes[length - 1], TRIE_TOKEN] = numbers[i]
    while depth > 0:
        depth -= 1
        tree[open_nodes[depth], TRIE_END] = many
    return many
