"""Compiled loops over the table of known configurations: the prefix-tree walk, and where the tokens of a row lead.

`table` int32 [configurations, byte classes] holds the next configuration or DEAD; in the rows of configurations that
nobody has stepped from yet, UNKNOWN. The walk skips what is unknown, marks the row WANTED in its first column and
reports it; the caller fills it in and lets the walk go on.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit, uint8, uint32

from grammar_workers.numba_options import OPTIONS, called_with, readonly
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

DEAD, UNKNOWN, WANTED = -1, -2, -3


@called_with(
    int32[:, ::1],
    int32[::1],
    uint8[::1],
    int32[:, ::1],
    int32[:, ::1],
    int32[::1],
    uint32[::1],
    int32[:, ::1],
    int32[::1],
)
@njit(**OPTIONS)
def walk(tree, same, classes, table, begun, path, mask, gaps, wanted):  # type: ignore[no-untyped-def]
    """Set in `mask` the tokens below each of `begun` (int32 [k, 2]: a node of `tree`, the configuration before it).

    `path` int32 [longest token + 1] is scratch. `gaps` int32 [nodes, 2] receives the nodes that cannot be entered yet
    and the configurations before them, `wanted` int32 [nodes] the configurations whose rows are missing, once each.
    Returns how many there are of both.
    """
    many = 0
    missing = 0
    for k in range(begun.shape[0]):
        node = begun[k, 0]
        last = tree[node, TRIE_END]
        path[tree[node, TRIE_DEPTH]] = begun[k, 1]
        while node < last:
            depth = tree[node, TRIE_DEPTH]
            here = path[depth]
            if table[here, 0] < DEAD:
                if table[here, 0] == UNKNOWN:
                    table[here, 0] = WANTED
                    wanted[missing] = here
                    missing += 1
                gaps[many, 0] = node
                gaps[many, 1] = here
                many += 1
                node = tree[node, TRIE_END]
                continue
            target = table[here, classes[tree[node, TRIE_BYTE]]]
            if target == DEAD:
                node = tree[node, TRIE_END]
                continue
            path[depth + 1] = target
            token = tree[node, TRIE_TOKEN]
            if token >= 0:
                while token >= 0:
                    mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                    token = same[token]
            node += 1
    return many, missing


@called_with(readonly(uint8[::1]), int64[::1], uint8[::1], int32[:, ::1], int64, readonly(uint32[::1]), int32[::1])
@njit(**OPTIONS)
def targets(data, offsets, classes, table, configuration, mask, reached):  # type: ignore[no-untyped-def]
    """Write into `reached` (int32 [V], filled with -1) the configuration after each token of `mask` that has bytes.

    UNKNOWN steps are passed over.
    """
    for word in range(mask.shape[0]):
        bits = mask[word]
        token = word * 32
        while bits:
            if bits & np.uint32(1) and offsets[token] < offsets[token + 1]:
                here = configuration
                for i in range(offsets[token], offsets[token + 1]):
                    here = table[here, classes[data[i]]]
                    if here < 0:
                        break
                if here >= 0:
                    reached[token] = here
            bits >>= np.uint32(1)
            token += 1
