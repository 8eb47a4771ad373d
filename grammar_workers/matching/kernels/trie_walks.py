"""Compiled walks over prefix trees that set the bits of the tokens which can be read.

`tables` are those of the automaton and `stack` its `Stack` (see `step`), `trees` is `Vocabulary.trees`. `path` (int64
[depth + 3, PATH_COLUMNS]) is scratch space for the configuration at each depth of a tree; path[0] is where a walk
starts, and the last row is room for a set of bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.step import FRAMES_FULL, depend, leave, step
from grammar_workers.numba_options import BORROWS, INNER
from grammar_workers.pushdown.instructions import (
    DEAD,
    FAR,
    FREE_STRING,
    LOOP_BASE,
    LOOP_MAXIMUM,
    LOOP_MINIMUM,
    LOOP_RUN,
    SILENT_MOVES,
    STATE_EXIT,
    STATE_LITERAL,
    STATE_LOOP,
    STATE_ROW,
    TOLERATES_UNESCAPED,
)
from grammar_workers.vocabulary.slices import STAYS_UNESCAPED
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

PATH_STATE, PATH_REGISTER, PATH_FRAME = range(3)
PATH_BASE_STATE, PATH_BASE_REGISTER, PATH_BASE_FRAME, PATH_COLUMNS = range(3, 7)
"""The configuration that the walk of `correct_row` is compared with."""
PATH_FAN, PATH_FAN_END, PATH_DEAD = PATH_BASE_STATE, PATH_BASE_REGISTER, PATH_BASE_FRAME
"""What `walk_branch` notes in their place."""


@njit(inline="always", **BORROWS)
def put(path, depth, state, counter, frame):  # type: ignore[no-untyped-def]
    path[depth, PATH_STATE] = state
    path[depth, PATH_REGISTER] = counter
    path[depth, PATH_FRAME] = frame


@njit(inline="always", **BORROWS)
def step_from(tables, stack, path, depth, byte):  # type: ignore[no-untyped-def]
    """The configuration after `byte`, read from that at `depth`."""
    return step(tables, stack, path[depth, PATH_STATE], path[depth, PATH_REGISTER], path[depth, PATH_FRAME], byte)


@njit(inline="always", **BORROWS)
def _allow(mask, same, token):  # type: ignore[no-untyped-def]
    """Set the bits of `token` (may be -1) and of all tokens with the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        token = same[token]


@njit(inline="always", **BORROWS)
def allow_all(mask, row):  # type: ignore[no-untyped-def]
    """Set the bits that are set in another row; numpy's `|=` would take longer to compile than a whole kernel."""
    for word in range(mask.shape[0]):
        mask[word] |= row[word]


@njit(**BORROWS, **INNER)
def walk_tree(tables, stack, tree, same, path, mask):  # type: ignore[no-untyped-def]
    """Set the bits of the tokens in `tree` that can be read from path[0]. Returns 0 or FRAMES_FULL."""
    i = np.int64(0)
    while i < tree.shape[0]:
        depth = tree[i, TRIE_DEPTH]
        state, counter, frame = step_from(tables, stack, path, depth, tree[i, TRIE_BYTE])
        if state < 0:
            if state == FRAMES_FULL:
                return state
            i = np.int64(tree[i, TRIE_END])
            continue
        put(path, depth + 1, state, counter, frame)
        _allow(mask, same, tree[i, TRIE_TOKEN])
        i += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _next_child(tables, fans, fan, state, byte, dead):  # type: ignore[no-untyped-def]
    """The first child in a fan, from `byte` on, for a byte that `state` reads itself; -1 when there is none.

    Bytes that lead where state `dead` (or -1: no such state) leads are known to lead nowhere.
    """
    states, table = tables.states, tables.table
    row = states[state, STATE_ROW]
    literal = states[state, STATE_LITERAL]
    if row < 0:
        return np.int64(fans[fan, literal]) if literal >= byte else np.int64(-1)
    shunned = np.int64(states[dead, STATE_ROW]) if dead >= 0 else np.int64(-1)
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


@njit(**BORROWS, **INNER)
def walk_vocabulary(tables, stack, trees, path, dead, mask):  # type: ignore[no-untyped-def]
    """The same over the tree of all tokens.

    Most states read few bytes, and the subtrees of a node lie far apart: where a node has many children, the dead ones
    are not even looked at (`trie.build_fans`). `dead` is a state (or -1) that cannot be entered with the
    counter and the frame of path[0]: what leads where it leads is dead, too.
    Bytes that the first state does not read itself are left to its callers, each of which is gone back to once.
    """
    tree, fans = trees.tree, trees.fans
    taken = path[path.shape[0] - 1]
    taken[:] = 0
    for _ in range(SILENT_MOVES):
        state = path[0, PATH_STATE]
        node = _next_child(tables, fans, 0, state, np.int64(0), dead)
        while node >= 0:
            byte = np.int64(tree[node, TRIE_BYTE])
            if take(taken, byte):
                status = walk_branch(tables, stack, trees, path, dead, node, mask)
                if status < 0:
                    return status
            node = _next_child(tables, fans, 0, state, byte + 1, dead)
        state, counter, frame = leave(tables, stack, path[0, PATH_STATE], path[0, PATH_REGISTER], path[0, PATH_FRAME])
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
        put(path, 0, state, counter, frame)
        dead = np.int64(-1)
    return np.int64(0)


@njit(inline="always", **BORROWS)
def tolerates(stack, loops, loop, staying, counter, frame):  # type: ignore[no-untyped-def]
    """Whether all tokens that stay within a string (see `slices.mark_staying`) go on from a state with `loop`."""
    base, minimum, maximum = loops[loop, LOOP_BASE], np.int64(loops[loop, LOOP_MINIMUM]), loops[loop, LOOP_MAXIMUM]
    if base >= 0 or (base == TOLERATES_UNESCAPED and staying < STAYS_UNESCAPED):
        return False
    if base == FREE_STRING:
        minimum = np.int64(-FAR)
    following = np.int64(staying & (STAYS_UNESCAPED - 1)) - 1
    if following > loops[loop, LOOP_RUN]:
        return False
    last = np.int64(maximum) - following if maximum >= 0 else np.int64(FAR)
    if not minimum <= counter <= last:
        return False
    depend(stack, counter, frame, minimum, last)
    return True


@njit(**BORROWS, **INNER)
def walk_branch(tables, stack, trees, path, dead, i, mask):  # type: ignore[no-untyped-def]
    """`walk_tree` over node `i` of the tree of all tokens and what is below it.

    At each depth of `path` are also the fan of the node whose children stand there (-1: look at all of them), where its
    subtree ends, and the state `dead` as far as it is still known to be dead there.
    """
    states, loops = tables.states, tables.loops
    tree, same, fan_of, fans, staying = trees.tree, trees.same_bytes, trees.fan_of, trees.fans, trees.staying
    spans, tokens = trees.spans, trees.tokens
    last = np.int64(tree[i, TRIE_END])
    path[0, PATH_FAN] = -1
    while i < last:
        depth = tree[i, TRIE_DEPTH]
        if path[depth, PATH_FAN] >= 0:
            end = path[depth, PATH_FAN_END]
            following, fan = np.int64(tree[i, TRIE_BYTE]), path[depth, PATH_FAN]
            i = _next_child(tables, fans, fan, path[depth, PATH_STATE], following, path[depth, PATH_DEAD])
            if i < 0:
                i = end
                continue
        state, counter, frame = step_from(tables, stack, path, depth, tree[i, TRIE_BYTE])
        if state < 0:
            if state == FRAMES_FULL:
                return state
            i = np.int64(tree[i, TRIE_END])
            continue
        loop = states[state, STATE_LOOP]
        if loop > 0 and staying[i] and tolerates(stack, loops, loop, staying[i], counter, frame):
            end = np.int64(tree[i, TRIE_END])
            for j in range(spans[i], spans[end]):
                mask[tokens[j] >> 5] |= np.uint32(1) << np.uint32(tokens[j] & 31)
            i = end
            continue
        put(path, depth + 1, state, counter, frame)
        # What a state does not read itself, its callers may.
        path[depth + 1, PATH_FAN] = np.int64(fan_of[i]) if states[state, STATE_EXIT] < 0 else np.int64(-1)
        path[depth + 1, PATH_FAN_END] = np.int64(tree[i, TRIE_END])
        unmoved = counter == path[0, PATH_REGISTER] and frame == path[0, PATH_FRAME]
        like_before = loop > 0 and loops[loop, LOOP_BASE] == dead
        path[depth + 1, PATH_DEAD] = dead if unmoved and like_before else np.int64(-1)
        _allow(mask, same, tree[i, TRIE_TOKEN])
        i += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _alike(tables, path, depth, byte):  # type: ignore[no-untyped-def]
    """Whether both configurations at `depth` (see `correct_row`) surely go the same way on `byte`."""
    states, table = tables.states, tables.table
    one, other = path[depth, PATH_STATE], path[depth, PATH_BASE_STATE]
    same_counter = path[depth, PATH_REGISTER] == path[depth, PATH_BASE_REGISTER]
    if other < 0 or not same_counter or path[depth, PATH_FRAME] != path[depth, PATH_BASE_FRAME]:
        return False
    if states[one, STATE_LITERAL] == byte:
        target = one + 1
    else:
        target = np.int64(table[states[one, STATE_ROW], byte]) if states[one, STATE_ROW] >= 0 else np.int64(DEAD)
    if states[other, STATE_LITERAL] == byte:
        return target == other + 1
    if states[other, STATE_ROW] < 0 or target != table[states[other, STATE_ROW], byte]:
        return False
    return target >= 0 or states[one, STATE_EXIT] == states[other, STATE_EXIT]


@njit(**BORROWS, **INNER)
def correct_row(tables, stack, trees, path, mask):  # type: ignore[no-untyped-def]
    """Turn the row of the base configuration in path[0] into that of path[0]: walk only as long as they might differ.

    A subtree is left as it is as soon as both stand at the same place, or the walk reaches a plain loop state, which
    behaves alike from there on. Returns 0 or FRAMES_FULL.
    """
    tree, fans = trees.tree, trees.fans
    for byte in range(256):
        node = np.int64(fans[0, byte])
        if node >= 0 and not _alike(tables, path, 0, byte):
            status = _correct_subtree(tables, stack, trees, path, mask, node, np.int64(tree[node, TRIE_END]))
            if status < 0:
                return status
    return np.int64(0)


@njit(**BORROWS, **INNER)
def _correct_subtree(tables, stack, trees, path, mask, i, last):  # type: ignore[no-untyped-def]
    states, loops = tables.states, tables.loops
    tree, same = trees.tree, trees.same_bytes
    while i < last:
        depth = tree[i, TRIE_DEPTH]
        end = np.int64(tree[i, TRIE_END])
        if _alike(tables, path, depth, tree[i, TRIE_BYTE]):
            i = end
            continue
        state, counter, frame = step_from(tables, stack, path, depth, tree[i, TRIE_BYTE])
        if state == FRAMES_FULL:
            return state
        if state < 0:
            for j in range(i, end):
                token = tree[j, TRIE_TOKEN]
                while token >= 0:
                    mask[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
                    token = same[token]
            i = end
            continue
        loop = states[state, STATE_LOOP]
        if loop > 0 and loops[loop, LOOP_BASE] == FREE_STRING and frame == path[0, PATH_FRAME]:
            i = end
            continue
        base, base_counter = path[depth, PATH_BASE_STATE], path[depth, PATH_BASE_REGISTER]
        base_frame = path[depth, PATH_BASE_FRAME]
        if base >= 0:
            base, base_counter, base_frame = step(tables, stack, base, base_counter, base_frame, tree[i, TRIE_BYTE])
        if base == FRAMES_FULL:
            return base
        if base == state and base_counter == counter and base_frame == frame:
            i = end
            continue
        put(path, depth + 1, state, counter, frame)
        path[depth + 1, PATH_BASE_STATE] = base
        path[depth + 1, PATH_BASE_REGISTER] = base_counter
        path[depth + 1, PATH_BASE_FRAME] = base_frame
        _allow(mask, same, tree[i, TRIE_TOKEN])
        i += 1
    return np.int64(0)
