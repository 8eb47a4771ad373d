"""Kernels for rule graphs (context-free grammars): computation of a mask, and next configurations after tokens.

`table` (int32 [configurations, byte classes]) has the next configuration after each byte, or DEAD (-1). Rows that have
not been computed contain UNKNOWN (-2). If the prefix-tree walk for a mask reaches such a row, it skips the subtree and
reports the row to the caller. The first column of a reported row is WANTED (-3). The caller computes the row, and
continues the walk with the skipped subtree.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit, uint8, uint32

from grammar_workers.matching.kernels.trie_walks import allow
from grammar_workers.numba_options import OPTIONS, called_with, readonly
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

# Values of the table that are not configurations: no transition, a row that is not computed, a row that `walk` has
# reported.
DEAD, UNKNOWN, WANTED = -1, -2, -3
_TABLE, _LINE = int32[:, ::1], int32[::1]


@called_with(_TABLE, _LINE, uint8[::1], _TABLE, _TABLE, _LINE, uint32[::1], _TABLE, _LINE)
@njit(**OPTIONS)
def walk(tree, same, classes, table, begun, path, mask, gaps, wanted):  # type: ignore[no-untyped-def]
    """Walk subtrees of the prefix tree of all tokens, and set the bits of the allowed tokens in `mask`.

    Args:
        tree: Prefix tree, int32 [nodes, TRIE_COLUMNS].
        same: For each token, the next token with equal bytes, or -1, int32 [V].
        classes: Class of each byte (column of `table`), uint8 [256].
        table: Next configurations, int32 [configurations, byte classes], see the module. The walk changes UNKNOWN to
            WANTED in the first column of rows that it reports.
        begun: The subtrees to walk, int32 [k, 2]: root in `tree`, and configuration before the byte of the root.
        path: Scratch space, int32 [longest token + 1].
        mask: Mask to change, uint32 [words]. Bits are only set, never cleared.
        gaps: Receives the roots of skipped subtrees and the configurations before them, int32 [nodes, 2].
        wanted: Receives the configurations whose rows must be computed, once each, int32 [nodes].

    Returns:
        The number of rows written to `gaps`, and the number of items written to `wanted`.
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
            allow(mask, same, tree[node, TRIE_TOKEN])
            node += 1
    return many, missing


@called_with(readonly(uint8[::1]), int64[::1], uint8[::1], _TABLE, int64, readonly(uint32[::1]), _LINE)
@njit(**OPTIONS)
def targets(data, offsets, classes, table, configuration, mask, reached):  # type: ignore[no-untyped-def]
    """Compute the configuration of a rule graph after each token of a mask.

    Tokens whose bytes lead to a row of `table` that has not been computed (UNKNOWN) are skipped.

    Args:
        data: Bytes of all tokens, uint8.
        offsets: Offset of each token in `data`, int64 [V + 1].
        classes: Class of each byte (column of `table`), uint8 [256].
        table: Next configurations, int32 [configurations, byte classes], see the module. Not changed.
        configuration: The configuration before the token (row of `table`).
        mask: The tokens to consider, uint32 [words]. Tokens without bytes are ignored.
        reached: Receives the configurations, int32 [V]. The caller fills it with -1; disallowed and skipped tokens keep
            -1.
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
