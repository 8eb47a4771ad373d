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
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

# Number of columns of a folded tree: the columns of a plain prefix tree up to TRIE_END.
FOLDED_COLUMNS = TRIE_TOKEN
# Columns of a merged node, while a tree is folded: a byte, the depth, the parent, the child that was found last, the
# next sibling, and the last token that ends here. 0: no node, because the root is no child. -1: no token.
_BYTE, _DEPTH, _PARENT, _CHILD, _SIBLING, _TOKEN, _COLUMNS = range(7)


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


def fold(tree: NDArray[np.int32], same_bytes: NDArray[np.int32], classes: bytes) -> FoldedTree:
    """Fold the prefix tree of a vocabulary: merge edges whose bytes are in one equivalence class.

    Args:
        tree: Prefix tree of all tokens (`Vocabulary.tree`), int32 [nodes, TRIE_COLUMNS].
        same_bytes: For each token, the next token with the same bytes (`Vocabulary.same_bytes`), -1 for none, int32
            [V].
        classes: Equivalence class of each byte, 256 bytes. Tokens with a byte of class 255 (UNREAD) are not in the
            folded tree.

    Returns:
        The folded tree. Two tokens end in one node if their bytes have the same sequence of classes.
    """
    return FoldedTree(*_fold(tree, same_bytes, np.frombuffer(classes, np.uint8)))


@called_with(int32[:, ::1], int32[::1], readonly(uint8[::1]))
@njit(**OPTIONS)
def _fold(tree, same_bytes, classes):  # type: ignore[no-untyped-def]
    nodes, before = _merge(tree, same_bytes, classes)
    return _in_preorder(nodes, before)


@njit(**OPTIONS)
def _merge(tree, same_bytes, classes):  # type: ignore[no-untyped-def]
    """Return the merged nodes in the order of their creation, and for each token the one before it in its node or -1.

    Nodes are merged if their bytes have the same sequence of classes. Merged node 0 is the root.
    """
    most = tree.shape[0] + 1
    nodes = np.empty((most, _COLUMNS), np.int32)
    before = np.empty(same_bytes.shape[0], np.int32)
    path = np.empty(most, np.int32)
    nodes[0, _CHILD] = path[0] = 0
    many = np.int32(1)
    i = np.int64(0)
    while i < tree.shape[0]:
        byte, depth = tree[i, TRIE_BYTE], tree[i, TRIE_DEPTH]
        if classes[byte] == UNREAD:
            i = np.int64(tree[i, TRIE_END])
            continue
        parent = path[depth]
        first = node = nodes[parent, _CHILD]
        left = np.int32(0)
        while node > 0 and classes[nodes[node, _BYTE]] != classes[byte]:
            left, node = node, nodes[node, _SIBLING]
        if node == 0:
            node = many
            many += np.int32(1)
            nodes[node, _BYTE], nodes[node, _DEPTH], nodes[node, _PARENT] = byte, depth, parent
            nodes[node, _CHILD], nodes[node, _TOKEN] = 0, -1
        elif left > 0:
            nodes[left, _SIBLING] = nodes[node, _SIBLING]
        # Neighboring bytes mostly have one class, so the child that was found last comes first.
        if node != first:
            nodes[node, _SIBLING] = first
            nodes[parent, _CHILD] = node
        token = tree[i, TRIE_TOKEN]
        while token >= 0:
            before[token] = nodes[node, _TOKEN]
            nodes[node, _TOKEN] = token
            token = same_bytes[token]
        path[depth + 1] = node
        i += 1
    return nodes[:many], before


@njit(**OPTIONS)
def _in_preorder(nodes, before):  # type: ignore[no-untyped-def]
    """Return the arrays of the `FoldedTree` of merged nodes."""
    many = nodes.shape[0]
    sizes = np.ones(many, np.int32)
    for node in range(many - 1, 0, -1):
        sizes[nodes[node, _PARENT]] += sizes[node]
    folded = np.empty((many - 1, FOLDED_COLUMNS), np.int32)
    last_tokens = np.empty(many - 1, np.int32)
    # Where the subtree of the next child of each node begins.
    free = np.zeros(many, np.int32)
    for node in range(1, many):
        number = free[nodes[node, _PARENT]]
        end = number + sizes[node]
        free[nodes[node, _PARENT]] = end
        free[node] = number + 1
        folded[number, TRIE_BYTE] = nodes[node, _BYTE]
        folded[number, TRIE_DEPTH] = nodes[node, _DEPTH]
        folded[number, TRIE_END] = end
        last_tokens[number] = nodes[node, _TOKEN]
    spans = np.zeros(many, np.int64)
    tokens = np.empty(before.shape[0], np.int32)
    filled = 0
    for number in range(many - 1):
        token = last_tokens[number]
        while token >= 0:
            tokens[filled] = token
            filled += 1
            token = before[token]
        spans[number + 1] = filled
    return folded, spans, tokens[:filled].copy()
