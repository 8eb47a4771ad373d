"""Folded prefix tree of a vocabulary: equivalent bytes share an edge, so that a walk of the tree is short.

A pattern such as `[a-z0-9-]+` allows tens of thousands of tokens, but distinguishes few kinds of tokens. For example,
"thing" and "these" are both five letters. `pushdown.byte_classes` computes the equivalence classes of bytes. A walk of
the folded tree takes hundreds of steps, and a walk of the plain tree takes hundreds of thousands. Patterns with equal
classes share a folded tree. It does not contain the tokens with a quote or a backslash. `StringSlices.unfolded` has a
plain tree of these tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int32, njit, uint8
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS, called_with, readonly
from grammar_workers.pushdown.byte_classes import UNREAD
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN, group_tokens

# Number of columns of a folded tree: the columns of a plain prefix tree up to TRIE_END.
FOLDED_COLUMNS = TRIE_TOKEN
# Columns of the merged nodes, while a tree is folded.
_BYTE, _DEPTH, _PARENT = range(3)


class FoldedTree(NamedTuple):
    """Folded prefix tree of the tokens without quotes and backslashes. Bytes of one equivalence class share an edge.

    Attributes:
        tree: Nodes in preorder, int32 [nodes, FOLDED_COLUMNS]. The columns are: one byte of the class that leads to the
            node, the depth of the node (0 for first bytes), and the index of the first node after its subtree.
        spans: Offsets into `tokens`, int64 [nodes + 1]. The tokens that end in node i are
            `tokens[spans[i]:spans[i + 1]]`.
        tokens: Token IDs in the order of the nodes in which the tokens end, int32.
    """

    tree: NDArray[np.int32]
    spans: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Memory of the three arrays of the tree, in bytes."""
        return self.tree.nbytes + self.spans.nbytes + self.tokens.nbytes


def fold(tree: NDArray[np.int32], node_of: NDArray[np.int32], classes: bytes) -> FoldedTree:
    """Fold the prefix tree of a vocabulary: merge edges whose bytes are in one equivalence class.

    Args:
        tree: Prefix tree of all tokens (`Vocabulary.tree`), int32 [nodes, TRIE_COLUMNS].
        node_of: For each token, the node of `tree` in which it ends (`Vocabulary.node_of`), -1 for none, int32 [V].
        classes: Equivalence class of each byte, 256 bytes. Tokens with a byte of class 255 (UNREAD) are not in the
            folded tree.

    Returns:
        The folded tree. Two tokens end in one node if their bytes have the same sequence of classes.
    """
    return FoldedTree(*_fold(tree, node_of, np.frombuffer(classes, np.uint8)))


@called_with(int32[:, ::1], int32[::1], readonly(uint8[::1]))
@njit(**OPTIONS)
def _fold(tree, node_of, classes):  # type: ignore[no-untyped-def]
    merged, nodes = _merge(tree, classes)
    folded, number_of = _in_preorder(nodes)
    ends = np.full(node_of.shape[0], -1, np.int32)
    for token in range(node_of.shape[0]):
        if node_of[token] >= 0:
            ends[token] = number_of[merged[node_of[token]]]
    spans, tokens = group_tokens(ends, folded.shape[0])
    return folded, spans, tokens


@njit(**OPTIONS)
def _merge(tree, classes):  # type: ignore[no-untyped-def]
    """Return the merged node of each node of a prefix tree, and byte, depth and parent of each merged node.

    Nodes are merged if their bytes have the same sequence of classes. Merged nodes have the order in which they are
    created. Merged node 0 is the root. It also stands for the nodes that are left out.
    """
    most = tree.shape[0] + 1
    merged = np.zeros(tree.shape[0], np.int32)
    nodes = np.empty((most, 3), np.int32)
    # The last child of each node, and the child before it. 0: none, because the root is no child.
    children = np.empty(most, np.int32)
    siblings = np.empty(most, np.int32)
    path = np.empty(most, np.int32)
    children[0] = path[0] = 0
    many = np.int32(1)
    i = np.int64(0)
    while i < tree.shape[0]:
        byte, depth = tree[i, TRIE_BYTE], tree[i, TRIE_DEPTH]
        if classes[byte] == UNREAD:
            i = np.int64(tree[i, TRIE_END])
            continue
        parent = path[depth]
        node = children[parent]
        while node > 0 and classes[nodes[node, _BYTE]] != classes[byte]:
            node = siblings[node]
        if node == 0:
            node = many
            many += np.int32(1)
            nodes[node, _BYTE], nodes[node, _DEPTH], nodes[node, _PARENT] = byte, depth, parent
            siblings[node] = children[parent]
            children[parent], children[node] = node, 0
        path[depth + 1] = node
        merged[i] = node
        i += 1
    return merged, nodes[:many].copy()


@njit(**OPTIONS)
def _in_preorder(nodes):  # type: ignore[no-untyped-def]
    """Return the folded tree of merged nodes, and the index of each of them in it (-1 for the root)."""
    many = nodes.shape[0]
    sizes = np.ones(many, np.int32)
    for node in range(many - 1, 0, -1):
        sizes[nodes[node, _PARENT]] += sizes[node]
    folded = np.empty((many - 1, FOLDED_COLUMNS), np.int32)
    number_of = np.full(many, -1, np.int32)
    # Where the subtree of the next child of each node begins.
    free = np.zeros(many, np.int32)
    for node in range(1, many):
        number = free[nodes[node, _PARENT]]
        end = number + sizes[node]
        number_of[node] = number
        free[nodes[node, _PARENT]] = end
        free[node] = number + 1
        folded[number, TRIE_BYTE] = nodes[node, _BYTE]
        folded[number, TRIE_DEPTH] = nodes[node, _DEPTH]
        folded[number, TRIE_END] = end
    return folded, number_of
