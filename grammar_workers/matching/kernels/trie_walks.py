"""Compiled walks over prefix trees that set the bits of the tokens which can be read.

`tables` and `stack` are as in `kernels`, `trees` is `Vocabulary.trees` (the tree of all tokens, the chain of tokens
with equal bytes, the fans of the tree). `path` (int64 [depth + 3, 6]) is scratch space for the configuration at each
depth of a tree; path[0] is where a walk starts, and the last row is room for a set of bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.step import (
    BORROWS,
    DEAD,
    EXIT,
    FAR,
    FRAMES_FULL,
    LIT,
    LOOP,
    LOOP_BASE,
    LOOP_MAXIMUM,
    LOOP_MINIMUM,
    ROW,
    SILENT_MOVES,
    TOLERATES_UNESCAPED,
    depend,
    leave,
    step,
)
from grammar_workers.vocabulary.slices import UNESCAPED
from grammar_workers.vocabulary.trie import BYTE, DEPTH, END, TOKEN


@njit(inline="always", **BORROWS)
def _allow(mask, same, token):  # type: ignore[no-untyped-def]
    """Set the bits of `token` (may be -1) and of all tokens with the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        token = same[token]


@njit(**BORROWS)
def walk_tree(tables, stack, tree, same, first, last, path, mask):  # type: ignore[no-untyped-def]
    """Set the bits of the tokens in nodes [first, last) that can be read from path[0]. Returns 0 or FRAMES_FULL."""
    i = np.int64(first)
    while i < last:
        depth = tree[i, DEPTH]
        state, register, frame = step(tables, stack, path[depth, 0], path[depth, 1], path[depth, 2], tree[i, BYTE])
        if state < 0:
            if state == FRAMES_FULL:
                return state
            i = np.int64(tree[i, END])
            continue
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        _allow(mask, same, tree[i, TOKEN])
        i += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _next_child(tables, fans, fan, state, byte, dead):  # type: ignore[no-untyped-def]
    """The first child in a fan, from `byte` on, for a byte that `state` reads itself; -1 when there is none.

    Bytes that lead where state `dead` (or -1: no such state) leads are known to lead nowhere.
    """
    states, table = tables[0], tables[1]
    row = states[state, ROW]
    literal = states[state, LIT]
    if row < 0:
        return np.int64(fans[fan, literal]) if literal >= byte else np.int64(-1)
    shunned = np.int64(states[dead, ROW]) if dead >= 0 else np.int64(-1)
    while byte < 256:
        reads = table[row, byte] >= 0 and (shunned < 0 or table[row, byte] != table[shunned, byte])
        if (reads or literal == byte) and fans[fan, byte] >= 0:
            return np.int64(fans[fan, byte])
        byte += 1
    return np.int64(-1)


@njit(inline="always", **BORROWS)
def take(taken, byte):  # type: ignore[no-untyped-def]
    """Put a byte into a set, the last row of `path`; whether it was not there yet."""
    before = taken[byte >> 6]
    taken[byte >> 6] = before | np.int64(1) << np.int64(byte & 63)
    return taken[byte >> 6] != before


@njit(**BORROWS)
def walk_vocabulary(tables, stack, trees, path, dead, mask):  # type: ignore[no-untyped-def]
    """The same over the tree of all tokens.

    Most states read few bytes, and the subtrees of a node lie far apart: where a node has many children, the dead ones
    are not even looked at (`prefix_tree.build_fans`). `dead` is a state (or -1) that cannot be entered with the
    register and the frame of path[0]: what leads where it leads is dead, too.
    Bytes that the first state does not read itself are left to its callers, each of which is gone back to once.
    """
    tree, fans = trees[0], trees[3]
    taken = path[path.shape[0] - 1]
    taken[:] = 0
    for _ in range(SILENT_MOVES):
        state = path[0, 0]
        node = _next_child(tables, fans, 0, state, np.int64(0), dead)
        while node >= 0:
            byte = np.int64(tree[node, BYTE])
            if take(taken, byte):
                status = walk_branch(tables, stack, trees, path, dead, node, mask)
                if status < 0:
                    return status
            node = _next_child(tables, fans, 0, state, byte + 1, dead)
        state, register, frame = leave(tables, stack, path[0, 0], path[0, 1], path[0, 2])
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
        path[0, 0] = state
        path[0, 1] = register
        path[0, 2] = frame
        dead = np.int64(-1)
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _tolerates(stack, loops, loop, staying, register, frame):  # type: ignore[no-untyped-def]
    """Whether all tokens that stay within a string (see `string_slice.mark_staying`) go on from a state with `loop`."""
    base, minimum, maximum = loops[loop, LOOP_BASE], np.int64(loops[loop, LOOP_MINIMUM]), loops[loop, LOOP_MAXIMUM]
    if base >= 0 or (base == TOLERATES_UNESCAPED and staying < UNESCAPED):
        return False
    if base == DEAD:
        minimum = np.int64(-FAR)
    following = np.int64(staying & (UNESCAPED - 1)) - 1
    last = np.int64(maximum) - following if maximum >= 0 else np.int64(FAR)
    if not minimum <= register <= last:
        return False
    depend(stack, register, frame, minimum, last)
    return True


@njit(**BORROWS)
def walk_branch(tables, stack, trees, path, dead, i, mask):  # type: ignore[no-untyped-def]
    """`walk_tree` over node `i` of the tree of all tokens and what is below it.

    path[depth, 3:]: the fan of the node whose children stand at `depth` (-1: look at all of them), where its subtree
    ends, and the state `dead` as far as it is still known to be dead there.
    """
    states, loops = tables[0], tables[5]
    tree, same, fan_of, fans, staying = trees
    last = np.int64(tree[i, END])
    path[0, 3] = -1
    while i < last:
        depth = tree[i, DEPTH]
        if path[depth, 3] >= 0:
            end = path[depth, 4]
            i = _next_child(tables, fans, path[depth, 3], path[depth, 0], np.int64(tree[i, BYTE]), path[depth, 5])
            if i < 0:
                i = end
                continue
        state, register, frame = step(tables, stack, path[depth, 0], path[depth, 1], path[depth, 2], tree[i, BYTE])
        if state < 0:
            if state == FRAMES_FULL:
                return state
            i = np.int64(tree[i, END])
            continue
        loop = states[state, LOOP]
        if loop > 0 and staying[i] and _tolerates(stack, loops, loop, staying[i], register, frame):
            for j in range(i, tree[i, END]):
                _allow(mask, same, tree[j, TOKEN])
            i = np.int64(tree[i, END])
            continue
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        # What a state does not read itself, its callers may.
        path[depth + 1, 3] = np.int64(fan_of[i]) if states[state, EXIT] < 0 else np.int64(-1)
        path[depth + 1, 4] = np.int64(tree[i, END])
        unmoved = register == path[0, 1] and frame == path[0, 2]
        like_before = loop > 0 and loops[loop, LOOP_BASE] == dead
        path[depth + 1, 5] = dead if unmoved and like_before else np.int64(-1)
        _allow(mask, same, tree[i, TOKEN])
        i += 1
    return np.int64(0)


@njit(**BORROWS)
def walk_tails(tables, stack, slices, path, shortest, longest, mask):  # type: ignore[no-untyped-def]
    """The same over the tails that follow a closing quote: node i stands for tokens[spans[i] : spans[i + 1]].

    Each of these tokens is a run of `lengths` string characters, the quote, and the tail; only those whose run has
    between `shortest` and `longest` characters are allowed. path[0] is the configuration after the quote; node 0 is the
    empty tail. Returns 0 or FRAMES_FULL.
    """
    tails, spans, tokens, lengths = slices[1], slices[2], slices[3], slices[4]
    i = np.int64(0)
    last = tails.shape[0]
    while i < last:
        depth = tails[i, DEPTH]
        if i > 0:
            state, register, frame = step(
                tables,
                stack,
                path[depth - 1, 0],
                path[depth - 1, 1],
                path[depth - 1, 2],
                tails[i, BYTE],
            )
            if state < 0:
                if state == FRAMES_FULL:
                    return state
                i = np.int64(tails[i, END])
                continue
            path[depth, 0] = state
            path[depth, 1] = register
            path[depth, 2] = frame
        for j in range(spans[i], spans[i + 1]):
            if shortest <= lengths[j] <= longest:
                token = tokens[j]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        i += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _alike(tables, path, depth, byte):  # type: ignore[no-untyped-def]
    """Whether both configurations at `depth` (see `correct_row`) surely go the same way on `byte`."""
    states, table = tables[0], tables[1]
    one, other = path[depth, 0], path[depth, 3]
    if other < 0 or path[depth, 1] != path[depth, 4] or path[depth, 2] != path[depth, 5]:
        return False
    if states[one, LIT] == byte:
        target = one + 1
    else:
        target = np.int64(table[states[one, ROW], byte]) if states[one, ROW] >= 0 else np.int64(DEAD)
    if states[other, LIT] == byte:
        return target == other + 1
    if states[other, ROW] < 0 or target != table[states[other, ROW], byte]:
        return False
    return target >= 0 or states[one, EXIT] == states[other, EXIT]


@njit(**BORROWS)
def correct_row(tables, stack, trees, path, mask):  # type: ignore[no-untyped-def]
    """Turn the row of a base state (path[0, 3:]) into that of path[0, :3]: walk only as long as they might differ.

    A subtree is left as it is as soon as both stand at the same place, or the walk reaches a plain loop state, which
    behaves alike from there on. Returns 0 or FRAMES_FULL.
    """
    tree, fans = trees[0], trees[3]
    for byte in range(256):
        node = np.int64(fans[0, byte])
        if node >= 0 and not _alike(tables, path, 0, byte):
            status = _correct_subtree(tables, stack, trees, path, mask, node, np.int64(tree[node, END]))
            if status < 0:
                return status
    return np.int64(0)


@njit(**BORROWS)
def _correct_subtree(tables, stack, trees, path, mask, i, last):  # type: ignore[no-untyped-def]
    states, loops = tables[0], tables[5]
    tree, same = trees[0], trees[1]
    while i < last:
        depth = tree[i, DEPTH]
        end = np.int64(tree[i, END])
        if _alike(tables, path, depth, tree[i, BYTE]):
            i = end
            continue
        state, register, frame = step(tables, stack, path[depth, 0], path[depth, 1], path[depth, 2], tree[i, BYTE])
        if state == FRAMES_FULL:
            return state
        if state < 0:
            for j in range(i, end):
                token = tree[j, TOKEN]
                while token >= 0:
                    mask[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
                    token = same[token]
            i = end
            continue
        loop = states[state, LOOP]
        if loop > 0 and loops[loop, LOOP_BASE] == DEAD and frame == path[0, 2]:
            i = end
            continue
        base, base_register, base_frame = path[depth, 3], path[depth, 4], path[depth, 5]
        if base >= 0:
            base, base_register, base_frame = step(tables, stack, base, base_register, base_frame, tree[i, BYTE])
        if base == FRAMES_FULL:
            return base
        if base == state and base_register == register and base_frame == frame:
            i = end
            continue
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        path[depth + 1, 3] = base
        path[depth + 1, 4] = base_register
        path[depth + 1, 5] = base_frame
        _allow(mask, same, tree[i, TOKEN])
        i += 1
    return np.int64(0)
