"""Flat, preorder prefix trees over byte strings: the array that a mask row is walked over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numba import int32, int64, njit, uint8
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS, called_with, readonly

TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN, TRIE_COLUMNS = range(5)
"""Columns of a prefix tree: the byte read on entering a node, its depth (0 for first bytes), the first node after its
subtree, the number of the string that ends in it (or -1)."""


class Trees(NamedTuple):
    """The prefix tree of all tokens and what goes with it; kernels take it as it is."""

    tree: NDArray[np.int32]
    """[nodes, TRIE_COLUMNS]: TRIE_TOKEN holds the lowest id with these bytes"""
    same_bytes: NDArray[np.int32]
    """[V]: the next token id with the same bytes, or -1"""
    fan_of: NDArray[np.int32]
    """[nodes]: the number of a node's fan or -1"""
    fans: NDArray[np.int32]
    """[fans, 256]: see `build_fans`"""
    staying: NDArray[np.uint8]
    """[nodes]: see `slices.mark_staying`"""
    spans: NDArray[np.int64]
    """[nodes + 1]: where the tokens that end in a node lie in `tokens`, before those that end below it"""
    tokens: NDArray[np.int32]
    """[tokens]: all of them, as far as they have bytes"""


def pack(strings: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All bytes one after the other (uint8) and the offset of each string in them (int64 [n + 1])."""
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum([len(string) for string in strings], out=offsets[1:])
    return np.frombuffer(b"".join(strings), np.uint8), offsets


def build(strings: Sequence[bytes]) -> NDArray[np.int32]:
    """The prefix tree of distinct non-empty `strings`, which must be sorted; int32 [nodes, TRIE_COLUMNS] in preorder.

    TRIE_TOKEN is the index into `strings`.
    """
    data, offsets = pack(strings)
    tree = np.empty((len(data), TRIE_COLUMNS), np.int32)
    return tree[: _build(data, offsets, tree)].copy()


def build_with_ids(ids: Mapping[bytes, int]) -> NDArray[np.int32]:
    """The prefix tree of the keys of `ids`, TRIE_TOKEN holding their values."""
    strings = sorted(ids)
    tree = build(strings)
    numbers = np.array([*(ids[string] for string in strings), -1], np.int32)
    tree[:, TRIE_TOKEN] = numbers[tree[:, TRIE_TOKEN]]
    return tree


MANY_CHILDREN = 8
"""From so many children on a node has a fan."""


def build_fans(tree: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where to go from a node without looking at its children one by one, for nodes that have many.

    Returns int32 [nodes], the number of a node's fan or -1, and the fans: int32 [fans, 256], the child for each byte or
    -1. Fan 0 is that of the root, which is no node: the nodes at depth 0.
    """
    fan_of = np.empty(len(tree), np.int32)
    many = _number_fans(tree, fan_of)
    fans = np.full((many, 256), -1, np.int32)
    _fill_fans(tree, fan_of, fans)
    return fan_of, fans


def order_tokens(tree: NDArray[np.int32], same_bytes: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The `spans` and `tokens` of `Trees`: those of a subtree lie side by side."""
    return _order_tokens(tree, same_bytes)


@called_with(int32[:, ::1], int32[::1])
@njit(**OPTIONS)
def _order_tokens(tree, same_bytes):  # type: ignore[no-untyped-def]
    spans = np.zeros(tree.shape[0] + 1, np.int64)
    tokens = np.empty(same_bytes.shape[0], np.int32)
    many = 0
    for node in range(tree.shape[0]):
        token = tree[node, TRIE_TOKEN]
        while token >= 0:
            tokens[many] = token
            many += 1
            token = same_bytes[token]
        spans[node + 1] = many
    return spans, tokens[:many].copy()


@called_with(int32[:, ::1], int32[::1])
@njit(**OPTIONS)
def _number_fans(tree, fan_of):  # type: ignore[no-untyped-def]
    many = 1
    for node in range(tree.shape[0]):
        children = 0
        child = node + 1
        while child < tree[node, TRIE_END] and children < MANY_CHILDREN:
            children += 1
            child = tree[child, TRIE_END]
        fan_of[node] = -1
        if children == MANY_CHILDREN:
            fan_of[node] = many
            many += 1
    return many


@called_with(int32[:, ::1], int32[::1], int32[:, ::1])
@njit(**OPTIONS)
def _fill_fans(tree, fan_of, fans):  # type: ignore[no-untyped-def]
    child = 0
    while child < tree.shape[0]:
        fans[0, tree[child, TRIE_BYTE]] = child
        child = tree[child, TRIE_END]
    for node in range(tree.shape[0]):
        if fan_of[node] >= 0:
            child = node + 1
            while child < tree[node, TRIE_END]:
                fans[fan_of[node], tree[child, TRIE_BYTE]] = child
                child = tree[child, TRIE_END]


@called_with(readonly(uint8[::1]), int64[::1], int32[:, ::1])
@njit(**OPTIONS)
def _build(data, offsets, tree):  # type: ignore[no-untyped-def]
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
        tree[open_nodes[length - 1], TRIE_TOKEN] = i
    while depth > 0:
        depth -= 1
        tree[open_nodes[depth], TRIE_END] = many
    return many
