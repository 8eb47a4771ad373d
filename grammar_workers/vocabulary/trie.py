"""Prefix trees of byte strings, stored as arrays in preorder. A mask is computed by a walk of the tree of all tokens.

A node is a row of four numbers (TRIE_COLUMNS):

    TRIE_BYTE    the byte that leads to the node
    TRIE_DEPTH   the depth of the node, 0 for first bytes
    TRIE_END     the index of the first node after the subtree of the node
    TRIE_TOKEN   the number of the string that ends in the node, -1 for none

If node i has children, the first one is node i + 1. So a walk visits the rows in order, and skips a subtree by a jump
to TRIE_END.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numba import int32, int64, njit, uint8
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS, called_with, readonly

# Columns of a prefix tree: the byte that leads to the node; the depth of the node (0 for first bytes); the index of
# the first node after the node's subtree; the number of the string that ends in the node, or -1.
TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN, TRIE_COLUMNS = range(5)


class Trees(NamedTuple):
    """The prefix tree of all tokens of a vocabulary, with auxiliary arrays. It is an argument of numba functions.

    -1 means none in `tree`, `same_bytes`, `fan_of` and `fans`.

    Attributes:
        tree: Nodes in preorder, int32 [nodes, TRIE_COLUMNS]. The column TRIE_TOKEN has the lowest ID of a token that
            ends in the node.
        same_bytes: For each token, the next higher ID of a token with the same bytes, int32 [V].
        fan_of: For each node, the index of its look-up table in `fans`, int32 [nodes].
        fans: Look-up tables of nodes with many children: the child for each byte, int32 [fans, 256] (see `build_fans`).
        staying: Mark of each node, from `slices.mark_staying`, uint8 [nodes].
        spans: Offsets into `tokens`, int64 [nodes + 1]. The tokens that end in node i are
            `tokens[spans[i]:spans[i + 1]]`.
        tokens: IDs of all tokens that have bytes, in the order of the nodes in which they end, int32.
    """

    tree: NDArray[np.int32]
    same_bytes: NDArray[np.int32]
    fan_of: NDArray[np.int32]
    fans: NDArray[np.int32]
    staying: NDArray[np.uint8]
    spans: NDArray[np.int64]
    tokens: NDArray[np.int32]


def pack(strings: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Concatenate byte strings.

    Args:
        strings: n byte strings, which may be empty.

    Returns:
        The concatenated bytes, uint8, and the offset of each string, int64 [n + 1]. The last offset is the total
        length.
    """
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum([len(string) for string in strings], out=offsets[1:])
    return np.frombuffer(b"".join(strings), np.uint8), offsets


def chain(strings: Sequence[bytes]) -> tuple[dict[bytes, int], NDArray[np.int32]]:
    """Find the occurrences of equal byte strings in a sequence.

    Args:
        strings: n byte strings. Empty strings are ignored.

    Returns:
        Two values: byte string -> index of its first occurrence; and for each index, the index of the next occurrence
        of the same byte string, -1 for none, int32 [n].
    """
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    following = np.full(len(strings), -1, np.int32)
    for number, string in enumerate(strings):
        if string:
            if string in last:
                following[last[string]] = number
            first.setdefault(string, number)
            last[string] = number
    return first, following


def build(strings: Sequence[bytes]) -> NDArray[np.int32]:
    """Build the prefix tree of byte strings.

    Args:
        strings: Distinct, non-empty byte strings in ascending order.

    Returns:
        Nodes in preorder, int32 [nodes, TRIE_COLUMNS]: byte, depth, index of the first node after the subtree, and the
        index in `strings` of the string that ends in the node (-1: none).
    """
    data, offsets = pack(strings)
    tree = np.empty((len(data), TRIE_COLUMNS), np.int32)
    return tree[: _build(data, offsets, tree)].copy()


def build_with_ids(ids: Mapping[bytes, int]) -> NDArray[np.int32]:
    """Build the prefix tree of byte strings that have IDs.

    Args:
        ids: Byte string (not empty) -> its ID.

    Returns:
        Nodes in preorder, int32 [nodes, TRIE_COLUMNS]: byte, depth, index of the first node after the subtree, and the
        ID of the string that ends in the node (-1: none).
    """
    strings = sorted(ids)
    tree = build(strings)
    numbers = np.array([*(ids[string] for string in strings), -1], np.int32)
    tree[:, TRIE_TOKEN] = numbers[tree[:, TRIE_TOKEN]]
    return tree


# Minimum number of children of a node with a fan.
MANY_CHILDREN = 8


@called_with(int32[:, ::1])
@njit(**OPTIONS)
def build_fans(tree):  # type: ignore[no-untyped-def]
    """Build look-up tables (*fans*) from a byte to a child, for the nodes of a prefix tree that have many children.

    Args:
        tree: Prefix tree, int32 [nodes, TRIE_COLUMNS].

    Returns:
        Two arrays: the index of each node's fan, -1 for none, int32 [nodes]; and the fans, which have the child for
        each byte, -1 for none, int32 [fans, 256]. Fan 0 belongs to the root, which has no row in `tree`. The children
        of the root are the nodes at depth 0.
    """
    fan_of = np.full(tree.shape[0], -1, np.int32)
    many = 1
    for node in range(tree.shape[0]):
        children = 0
        child = node + 1
        while child < tree[node, TRIE_END] and children < MANY_CHILDREN:
            children += 1
            child = tree[child, TRIE_END]
        if children == MANY_CHILDREN:
            fan_of[node] = many
            many += 1
    fans = np.full((many, 256), -1, np.int32)
    _fill_fan(tree, fans[0], 0, tree.shape[0])
    for node in np.flatnonzero(fan_of >= 0):
        _fill_fan(tree, fans[fan_of[node]], node + 1, tree[node, TRIE_END])
    return fan_of, fans


@njit(inline="always", **OPTIONS)
def _fill_fan(tree, fan, child, end):  # type: ignore[no-untyped-def]
    """Write a node's children, which are the nodes from `child` to `end` at one depth, into its fan."""
    while child < end:
        fan[tree[child, TRIE_BYTE]] = child
        child = tree[child, TRIE_END]


@called_with(int32[::1], int64)
@njit(**OPTIONS)
def group_tokens(node_of, nodes):  # type: ignore[no-untyped-def]
    """Group the tokens of a vocabulary by the nodes in which they end, in the order of the nodes.

    If the nodes are those of a prefix tree in preorder, the tokens of each subtree are contiguous.

    Args:
        node_of: For each token, the node in which it ends, -1 for none, int32 [V].
        nodes: Number of nodes.

    Returns:
        Two arrays (offsets, tokens): int64 [nodes + 1] and int32. `tokens` has the IDs of all tokens that end in a
        node. `tokens[offsets[i]:offsets[i + 1]]` are the tokens that end in node i, in ascending order.
    """
    spans = np.zeros(nodes + 1, np.int64)
    for node in node_of:
        if node >= 0:
            spans[node + 1] += 1
    for node in range(nodes):
        spans[node + 1] += spans[node]
    tokens = np.empty(spans[nodes], np.int32)
    filled = spans.copy()
    for token in range(node_of.shape[0]):
        node = node_of[token]
        if node >= 0:
            tokens[filled[node]] = token
            filled[node] += 1
    return spans, tokens


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
