"""Kernels that walk prefix trees and set the bits of the allowed tokens in a mask.

`tables` are the tables of the automaton, `stack` is its `Stack` (see `step`), `trees` is `Vocabulary.trees`. `path` is
scratch space, int64 [depth + 3, PATH_COLUMNS]. Row i of `path` has the configuration after i bytes, so a walk starts
with the configuration in path[0]. The last row of `path` is space for a set of bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.step import FRAMES_FULL, depend, leave, step, target_of
from grammar_workers.numba_options import BORROWS, INNER
from grammar_workers.pushdown import instructions as code
from grammar_workers.vocabulary.slices import STAYS_UNESCAPED
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

PATH_STATE, PATH_COUNTER, PATH_FRAME = range(3)
# The configuration with which the walk of `correct_row` compares.
PATH_BASE_STATE, PATH_BASE_COUNTER, PATH_BASE_FRAME, PATH_COLUMNS = range(3, 7)
# The values that `walk_branch` stores in the same columns.
PATH_FAN, PATH_FAN_END, PATH_DEAD = PATH_BASE_STATE, PATH_BASE_COUNTER, PATH_BASE_FRAME


@njit(inline="always", **BORROWS)
def put(path, depth, state, counter, frame):  # type: ignore[no-untyped-def]
    """Store a configuration (state, counter, frame) in the scratch space of a walk of a prefix tree.

    Args:
        path: Scratch space of a walk, int64 [depth + 3, PATH_COLUMNS], changed in place.
        depth: Number of bytes read since the beginning of the walk.
        state: State of the configuration.
        counter: Counter of the configuration.
        frame: Frame of the configuration.
    """
    path[depth, PATH_STATE] = state
    path[depth, PATH_COUNTER] = counter
    path[depth, PATH_FRAME] = frame


@njit(inline="always", **BORROWS)
def step_from(tables, stack, path, depth, byte):  # type: ignore[no-untyped-def]
    """Read a configuration from `path`, and advance it by one byte.

    Args:
        tables: Tables of the automaton.
        stack: The return stacks. New frames are added.
        path: Scratch space of the walk, int64 [depth + 3, PATH_COLUMNS]. Not changed.
        depth: Row of `path` with the configuration before the byte.
        byte: The byte, 0 to 255.

    Returns:
        The configuration (state, counter, frame) after the byte. The state is DEAD if the byte is not allowed,
        FRAMES_FULL if the frame table is full.
    """
    return step(tables, stack, path[depth, PATH_STATE], path[depth, PATH_COUNTER], path[depth, PATH_FRAME], byte)


@njit(inline="always", **BORROWS)
def allow(mask, same, token):  # type: ignore[no-untyped-def]
    """Set the bits of a token and of all tokens with the same bytes.

    Args:
        mask: Mask to change, uint32 [words].
        same: For each token, the next token with equal bytes, or -1, int32 [V].
        token: ID of the first of these tokens; -1: no token.
    """
    while token >= 0:
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        token = same[token]


@njit(inline="always", **BORROWS)
def allow_span(mask, tokens, first, last):  # type: ignore[no-untyped-def]
    """Set the bits of consecutive tokens of a list in a mask.

    Args:
        mask: Mask to change, uint32 [words].
        tokens: List of token IDs, int32.
        first: Index in `tokens` of the first token to allow.
        last: Index after the last token to allow.
    """
    for i in range(first, last):
        token = tokens[i]
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@njit(inline="always", **BORROWS)
def allow_all(mask, row):  # type: ignore[no-untyped-def]
    """Set all bits of `mask` that are set in `row`. Both are masks, uint32 [words]; `mask` is changed in place.

    The loop replaces numpy's `|=`, which takes longer to compile than a whole kernel.
    """
    for word in range(mask.shape[0]):
        mask[word] |= row[word]


@njit(**BORROWS, **INNER)
def walk_tree(tables, stack, tree, same, path, mask):  # type: ignore[no-untyped-def]
    """Set the mask bits of all tokens in a prefix tree that the configuration in path[0] allows.

    Args:
        tables: Tables of the automaton.
        stack: The return stacks. New frames are added.
        tree: Prefix tree, int32 [nodes, TRIE_COLUMNS].
        same: For each token, the next token with equal bytes (or equal bytes from the closing quote on), or -1, int32
            [V].
        path: Scratch space. path[0] has the configuration, the other rows are overwritten.
        mask: Mask to change, uint32 [words]. Bits are only set, never cleared.

    Returns:
        0. FRAMES_FULL (-2) if the frame table (all stack frames) is full.
    """
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
        allow(mask, same, tree[i, TRIE_TOKEN])
        i += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _next_child(tables, fans, fan, state, byte, dead):  # type: ignore[no-untyped-def]
    """Return the first child in a fan, from `byte` on, whose byte `state` reads itself; -1 for none.

    Bytes that lead to the same state from `dead` (a state, or -1 for none) are skipped, because they are known to be
    dead.
    """
    states, table = tables.states, tables.table
    row = states[state, code.STATE_ROW]
    literal = states[state, code.STATE_LITERAL]
    if row < 0:
        return np.int64(fans[fan, literal]) if literal >= byte else np.int64(-1)
    shunned = np.int64(states[dead, code.STATE_ROW]) if dead >= 0 else np.int64(-1)
    while byte < 256:
        reads = table[row, byte] >= 0 and (shunned < 0 or table[row, byte] != table[shunned, byte])
        if (reads or literal == byte) and fans[fan, byte] >= 0:
            return np.int64(fans[fan, byte])
        byte += 1
    return np.int64(-1)


@njit(inline="always", **BORROWS)
def take(taken, byte):  # type: ignore[no-untyped-def]
    """Add a byte to a set of bytes.

    Args:
        taken: The set, 256 bits in an int64 array of at least 4 items, changed in place.
        byte: The byte, 0 to 255.

    Returns:
        True if the set did not contain the byte before.
    """
    before = taken[byte >> 6]
    taken[byte >> 6] = before | np.int64(1) << np.int64(byte & 63)
    return taken[byte >> 6] != before


@njit(**BORROWS, **INNER)
def walk_vocabulary(tables, stack, trees, path, dead, mask):  # type: ignore[no-untyped-def]
    """Set the mask bits of the tokens that the configuration in path[0] allows, by a walk of the tree of all tokens.

    Most states read few bytes, and the subtrees of a node are far apart in memory. If a node has many children, the
    walk finds the next allowed child in a table (see `trie.build_fans`). If the state in path[0] does not read a byte,
    its rule may end, and then the rule that has called it may read the byte. So the walk is repeated from each calling
    rule, for the bytes that were not read before.

    Args:
        tables: Tables of the automaton.
        stack: The return stacks. New frames are added.
        trees: `Vocabulary.trees`.
        path: Scratch space. path[0] has the configuration and is changed.
        dead: A state that cannot be entered with the counter and frame of path[0]; -1: none. A byte is not allowed if
            it leads this state and the state in path[0] to the same next state.
        mask: Mask to change, uint32 [words]. Bits are only set, never cleared.

    Returns:
        0. FRAMES_FULL (-2) if the frame table (all stack frames) is full.
    """
    tree, fans = trees.tree, trees.fans
    taken = path[path.shape[0] - 1]
    taken[:] = 0
    for _ in range(code.SILENT_MOVES):
        state = path[0, PATH_STATE]
        node = _next_child(tables, fans, 0, state, np.int64(0), dead)
        while node >= 0:
            byte = np.int64(tree[node, TRIE_BYTE])
            if take(taken, byte):
                status = walk_branch(tables, stack, trees, path, dead, node, mask)
                if status < 0:
                    return status
            node = _next_child(tables, fans, 0, state, byte + 1, dead)
        state, counter, frame = leave(tables, stack, path[0, PATH_STATE], path[0, PATH_COUNTER], path[0, PATH_FRAME])
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
        put(path, 0, state, counter, frame)
        dead = np.int64(-1)
    return np.int64(0)


@njit(inline="always", **BORROWS)
def tolerates(stack, loops, loop, staying, counter, frame):  # type: ignore[no-untyped-def]
    """Return whether a state allows all tokens of a subtree that contains only ordinary string characters.

    The state has a loop: a record of the character sequences that the state allows (see `Tables.loops`).

    Args:
        stack: The return stacks. If the function returns True, the trace is updated (the record of the frames and
            counters on which the mask depends).
        loops: `Tables.loops`, int32 [n, LOOP_COLUMNS].
        loop: Index of the state's loop in `loops`, above 0.
        staying: Mark of the subtree's root, from `slices.mark_staying`; not 0. It encodes the maximum number of
            characters below the root.
        counter: Counter at the root of the subtree.
        frame: Frame at the root of the subtree.

    Returns:
        True if all of these tokens are allowed.
    """
    base, maximum = loops[loop, code.LOOP_BASE], loops[loop, code.LOOP_MAXIMUM]
    if base >= 0 or (base == code.TOLERATES_UNESCAPED and staying < STAYS_UNESCAPED):
        return False
    minimum = np.int64(-code.FAR) if base == code.FREE_STRING else np.int64(loops[loop, code.LOOP_MINIMUM])
    following = np.int64(staying & (STAYS_UNESCAPED - 1)) - 1
    if following > loops[loop, code.LOOP_RUN]:
        return False
    last = np.int64(maximum) - following if maximum >= 0 else np.int64(code.FAR)
    if not minimum <= counter <= last:
        return False
    depend(stack, counter, frame, minimum, last)
    return True


@njit(inline="always", **BORROWS)
def _put_children(tables, trees, path, node, dead):  # type: ignore[no-untyped-def]
    """Store in `path` how `walk_branch` examines the children of a node. The configuration is already stored."""
    states, loops, below = tables.states, tables.loops, trees.tree[node, TRIE_DEPTH] + 1
    state = path[below, PATH_STATE]
    loop = states[state, code.STATE_LOOP]
    # With an exit, callers may read the bytes that the state does not read, so all children are examined.
    path[below, PATH_FAN] = np.int64(trees.fan_of[node]) if states[state, code.STATE_EXIT] < 0 else np.int64(-1)
    path[below, PATH_FAN_END] = np.int64(trees.tree[node, TRIE_END])
    unmoved = path[below, PATH_COUNTER] == path[0, PATH_COUNTER] and path[below, PATH_FRAME] == path[0, PATH_FRAME]
    like_before = loop > 0 and loops[loop, code.LOOP_BASE] == dead
    path[below, PATH_DEAD] = dead if unmoved and like_before else np.int64(-1)


@njit(**BORROWS, **INNER)
def walk_branch(tables, stack, trees, path, dead, i, mask):  # type: ignore[no-untyped-def]
    """Set the mask bits of the allowed tokens in one subtree of the prefix tree of all tokens.

    For each depth, `path` also has three numbers about the node at this depth: its fan (table of its children by byte;
    -1: examine all children), the end of its subtree, and the value of `dead` that applies below it (-1: none).

    Args:
        tables: Tables of the automaton.
        stack: The return stacks. New frames are added.
        trees: `Vocabulary.trees`.
        path: Scratch space, changed. The row of the root's depth has the configuration before the byte of the root.
        dead: A state that cannot be entered with the counter and frame of path[0]; -1: none. A byte is not allowed if
            it leads this state and the present state to the same next state, and counter and frame are unchanged.
        i: Index of the root of the subtree.
        mask: Mask to change, uint32 [words]. Bits are only set, never cleared.

    Returns:
        0. FRAMES_FULL (-2) if the frame table (all stack frames) is full.
    """
    states, loops = tables.states, tables.loops
    tree, same, fans, staying = trees.tree, trees.same_bytes, trees.fans, trees.staying
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
        loop = states[state, code.STATE_LOOP]
        if loop > 0 and staying[i] and tolerates(stack, loops, loop, staying[i], counter, frame):
            end = np.int64(tree[i, TRIE_END])
            allow_span(mask, trees.tokens, trees.spans[i], trees.spans[end])
            i = end
            continue
        put(path, depth + 1, state, counter, frame)
        _put_children(tables, trees, path, i, dead)
        allow(mask, same, tree[i, TRIE_TOKEN])
        i += 1
    return np.int64(0)


@njit(inline="always", **BORROWS)
def _alike(tables, path, depth, byte):  # type: ignore[no-untyped-def]
    """Return whether the two configurations at `depth` (see `correct_row`) certainly read `byte` in the same way."""
    states = tables.states
    one, other = path[depth, PATH_STATE], path[depth, PATH_BASE_STATE]
    same_counter = path[depth, PATH_COUNTER] == path[depth, PATH_BASE_COUNTER]
    if other < 0 or not same_counter or path[depth, PATH_FRAME] != path[depth, PATH_BASE_FRAME]:
        return False
    target = target_of(tables, one, byte)
    if target != target_of(tables, other, byte):
        return False
    return target >= 0 or states[one, code.STATE_EXIT] == states[other, code.STATE_EXIT]


@njit(**BORROWS, **INNER)
def correct_row(tables, stack, trees, path, mask):  # type: ignore[no-untyped-def]
    """Convert the mask of one configuration to the mask of a similar configuration.

    The walk of the prefix tree visits only nodes at which the two configurations may differ. It skips a subtree if both
    configurations have become equal, or if both are in a JSON string of any characters.

    Args:
        tables: Tables of the automaton.
        stack: The return stacks. New frames are added.
        trees: `Vocabulary.trees`.
        path: Scratch space. In path[0], the columns PATH_STATE to PATH_FRAME have the configuration whose mask is
            wanted. PATH_BASE_STATE to PATH_BASE_FRAME have the configuration whose mask is given.
        mask: The given mask, uint32 [words]. Its bits are set and cleared in place.

    Returns:
        0. FRAMES_FULL (-2) if the frame table (all stack frames) is full.
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
        loop = states[state, code.STATE_LOOP]
        if loop > 0 and loops[loop, code.LOOP_BASE] == code.FREE_STRING and frame == path[0, PATH_FRAME]:
            i = end
            continue
        base, base_counter = path[depth, PATH_BASE_STATE], path[depth, PATH_BASE_COUNTER]
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
        path[depth + 1, PATH_BASE_COUNTER] = base_counter
        path[depth + 1, PATH_BASE_FRAME] = base_frame
        allow(mask, same, tree[i, TRIE_TOKEN])
        i += 1
    return np.int64(0)
