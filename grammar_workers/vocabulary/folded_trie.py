"""The vocabulary folded by classes of bytes: tokens whose bytes are alike one by one share a path of the prefix tree.

Inside of a pattern such as `[a-z0-9-]+` tens of thousands of tokens are read, but few kinds of them: to the automaton
"thing" and "these" are the same five letters (`pushdown.byte_classes`). Walking the folded tree takes hundreds of steps
where the tree takes hundreds of thousands, and patterns with the same classes of bytes share it. Tokens with a quote
or a backslash lead out of the plain characters of a string, and are left to a tree of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int32, njit, uint8
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS, called_with, readonly
from grammar_workers.pushdown.byte_classes import UNREAD
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

FOLDED_COLUMNS = TRIE_TOKEN
"""Those of other trees up to TRIE_END."""


class FoldedTree(NamedTuple):
    """The tokens without `byte_classes.LEADS_OUT`, folded; kernels take it as it is."""

    tree: NDArray[np.int32]
    """[nodes, FOLDED_COLUMNS] in preorder: TRIE_BYTE is one of the alike bytes that lead to a node"""
    spans: NDArray[np.int64]
    """[nodes + 1]: where the tokens that end in a node lie in `tokens`"""
    tokens: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return self.tree.nbytes + self.spans.nbytes + self.tokens.nbytes


def fold(tree: NDArray[np.int32], same: NDArray[np.int32], classes: bytes) -> FoldedTree:
    """The prefix tree of a vocabulary (`same`: `Vocabulary.same_bytes`) folded by `classes`, the class of each byte."""
    return FoldedTree(*_fold(tree, same, np.frombuffer(classes, np.uint8)))


@called_with(int32[:, ::1], int32[::1], readonly(uint8[::1]))
@njit(**OPTIONS)
def _fold(tree, same, classes):  # type: ignore[no-untyped-def]
    deepest = 0
    for depth in tree[:, TRIE_DEPTH]:
        deepest = max(deepest, depth)
    # Nodes as they are met; node 0 is the root. They are numbered anew below.
    most = tree.shape[0] + 1
    met = np.zeros(deepest + 2, np.int32)
    bytes_read = np.zeros(most, np.uint8)
    children = np.full(most, -1, np.int32)
    siblings = np.full(most, -1, np.int32)
    place = np.full(same.shape[0], -1, np.int32)
    many = np.int32(1)
    i = np.int64(0)
    while i < tree.shape[0]:
        byte = tree[i, TRIE_BYTE]
        if classes[byte] == UNREAD:
            i = np.int64(tree[i, TRIE_END])
            continue
        parent = met[tree[i, TRIE_DEPTH]]
        node = children[parent]
        while node >= 0 and classes[bytes_read[node]] != classes[byte]:
            node = siblings[node]
        if node < 0:
            node = many
            many += np.int32(1)
            bytes_read[node] = byte
            siblings[node] = children[parent]
            children[parent] = node
        met[tree[i, TRIE_DEPTH] + 1] = node
        token = tree[i, TRIE_TOKEN]
        while token >= 0:
            place[token] = node
            token = same[token]
        i += 1
    folded = np.empty((many - 1, FOLDED_COLUMNS), np.int32)
    number = np.zeros(many, np.int32)
    path = np.empty(deepest + 2, np.int32)
    depth = 0
    path[0] = children[0]
    done = np.int32(0)
    while depth >= 0:
        node = path[depth]
        if node < 0:
            depth -= 1
            if depth >= 0:
                folded[number[path[depth]], TRIE_END] = done
                path[depth] = siblings[path[depth]]
            continue
        number[node] = done
        folded[done, TRIE_BYTE] = bytes_read[node]
        folded[done, TRIE_DEPTH] = depth
        done += np.int32(1)
        depth += 1
        path[depth] = children[node]
    spans = np.zeros(many, np.int64)
    for token in range(place.shape[0]):
        if place[token] >= 0:
            spans[number[place[token]] + 1] += 1
    for node in range(many - 1):
        spans[node + 1] += spans[node]
    tokens = np.empty(spans[many - 1], np.int32)
    filled = spans.copy()
    for token in range(place.shape[0]):
        if place[token] >= 0:
            node = number[place[token]]
            tokens[filled[node]] = token
            filled[node] += 1
    return folded, spans, tokens
