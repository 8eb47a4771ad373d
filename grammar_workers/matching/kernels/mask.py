"""Kernels that compute the mask (the bit set of allowed tokens) of a configuration.

A configuration is (state, counter, frame), see `step`. `arrays` are the arrays of a recognizer (`arrays.Arrays`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.mask_classes import find_class, note_class
from grammar_workers.matching.kernels.step import FRAMES_FULL, arrive, begin_trace, depend, may_end
from grammar_workers.matching.kernels.trie_walks import (
    PATH_BASE_COUNTER,
    PATH_BASE_FRAME,
    PATH_BASE_STATE,
    PATH_STATE,
    allow_all,
    allow_span,
    correct_row,
    put,
    step_from,
    walk_tree,
    walk_vocabulary,
)
from grammar_workers.numba_options import BORROWS, INNER
from grammar_workers.pushdown import instructions as code
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END

# The tree to walk for a mask of which nothing is precomputed: the tree of all tokens, unless the walk is long; the
# tree of all tokens; the folded tree, for states with `pushdown.byte_classes`.
TREE_IF_SHORT, WHOLE_TREE, FOLDED_TREE = range(3)
# Result in place of a class: the walk is long, so the caller must choose the tree.
WIDE = -4
# Result in place of a class: the class table has no room (see `MaskClasses.grow`).
CLASSES_FULL = -5
# Minimum number of ASCII characters for a long walk: more than begin any JSON value, and more than the hexadecimal
# digits.
_MANY_BYTES = 24
_MOST_BYTES = 110


@njit(**BORROWS, **INNER)
def _reads_many(tables, state):  # type: ignore[no-untyped-def]
    """Return whether the walk from a state is long.

    It is long if the state reads most bytes, or many ASCII characters whose targets do not let `walk_branch` take whole
    subtrees.
    """
    states, table, loops = tables.states, tables.table, tables.loops
    row = states[state, code.STATE_ROW]
    many = 0
    read = 0
    if row >= 0:
        for byte in range(256):
            target = table[row, byte]
            if target >= 0:
                read += 1
                loop = states[target, code.STATE_LOOP]
                many += byte < 0x80 and (loop == 0 or loops[loop, code.LOOP_RUN] < code.TOLERATED_RUN)
    return many >= _MANY_BYTES or read >= _MOST_BYTES


@njit(inline="always", **BORROWS)
def _walk_folded(arrays, mask):  # type: ignore[no-untyped-def]
    """Set the bits of the allowed tokens by walks of the folded tree, and of the tree of tokens that are not folded."""
    tables, stack, path, folded = arrays.tables, arrays.stack, arrays.path, arrays.folded
    tree, spans, tokens = folded.tree, folded.spans, folded.tokens
    # Adjacent runs of tokens are set together, because each node has only a few tokens.
    first = last = np.int64(0)
    node = np.int64(0)
    while node < tree.shape[0]:
        depth = tree[node, TRIE_DEPTH]
        reached, counter_there, frame_there = step_from(tables, stack, path, depth, np.uint8(tree[node, TRIE_BYTE]))
        if reached < 0:
            if reached == FRAMES_FULL:
                return reached
            node = np.int64(tree[node, TRIE_END])
            continue
        if spans[node] != last:
            allow_span(mask, tokens, first, last)
            first = spans[node]
        last = spans[node + 1]
        put(path, depth + 1, reached, counter_there, frame_there)
        node += 1
    allow_span(mask, tokens, first, last)
    return walk_tree(tables, stack, arrays.slices.unfolded.rest, arrays.trees.same_bytes, path, mask)


@njit(**BORROWS, **INNER)
def fill_mask(arrays, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    """Compute the mask (bit set of allowed tokens) of a configuration, without end tokens.

    The method depends on the loop of the state (LOOP_BASE, see `instructions`):

    - FREE_STRING (a JSON string of any characters): the precomputed mask `body` for the number of characters that are
      left has the tokens that stay inside the string. `walk_tree` adds the tokens that close the string: in `tails`
      (their bytes from the quote on), or in `closing` (all their bytes) if a bound of the length is near.
    - The number of a state of a free string, and this state can be entered: the mask of the free string, as above. Then
      `correct_row` sets and clears the tokens that the two states read differently, such as declared property names.
    - The number of a state of a free string that cannot be entered now: `walk_vocabulary`. It skips the bytes that both
      states read in the same way (`dead`), so few nodes are left.
    - TOLERATES_ANY or TOLERATES_UNESCAPED for 32 characters (LOOP_RUN), and the counter is not near a bound: the
      precomputed mask of `any_character` or `any_but_escaped`. `walk_tree` adds the tokens in its `rest`.
    - All others, if the walk is long (`_reads_many`): the result is WIDE. The caller selects a tree with
      `WalkedTrees.choose`: the folded tree (`_walk_folded`) or the tree of all tokens (`walk_vocabulary`).
    - All others: `walk_vocabulary`. At nodes with many children, it finds the next allowed child in a table (*fan*). It
      allows a subtree as a whole if the state tolerates all characters of the subtree (`tolerates`).

    The callers then add the tokens of token edges and the end tokens, and clear the tokens that repeat unique items.

    The call replaces the trace in `arrays.stack` (see `step`). The new trace records the stack frames and the ranges of
    counters on which the mask and the result of `may_end` depend.

    Args:
        arrays: Arrays of the recognizer. The stack and the scratch space are changed.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.
        mask: Receives the mask, uint32 [words]. Its former content is overwritten.
        walked: Prefix tree to walk: WHOLE_TREE (of all tokens), TREE_IF_SHORT (the same tree, unless the walk is long)
            or FOLDED_TREE (equivalent bytes share an edge).

    Returns:
        0 if the mask was computed. FRAMES_FULL (-2): the caller must enlarge the frame table and repeat the call. WIDE
        (-4, only for TREE_IF_SHORT): the walk is long, so the caller must choose the tree. After FRAMES_FULL and WIDE,
        the mask is not valid.
    """
    tables, stack, trees, slices, path = arrays.tables, arrays.stack, arrays.trees, arrays.slices, arrays.path
    states, loops = tables.states, tables.loops
    begin_trace(stack, counter, frame)
    put(path, 0, state, counter, frame)
    if may_end(tables, stack, state, counter, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    loop = states[state, code.STATE_LOOP]
    base = state
    dead = np.int64(-1)
    if loop > 0 and loops[loop, code.LOOP_BASE] >= 0:
        base, _, _ = arrive(tables, stack, np.int64(loops[loop, code.LOOP_BASE]), counter, frame)
        if base == FRAMES_FULL:
            return base
        if base < 0:
            # Arbitrary strings are not allowed here, so few tokens are, and the plain walk is short.
            dead = np.int64(loops[loop, code.LOOP_BASE])
            loop = 0
    minimum = np.int64(loops[loop, code.LOOP_MINIMUM])
    maximum = np.int64(loops[loop, code.LOOP_MAXIMUM])
    mask[:] = 0
    if loop > 0 and loops[loop, code.LOOP_RUN] < code.TOLERATED_RUN:
        loop = 0
    if loop > 0 and loops[loop, code.LOOP_BASE] <= code.TOLERATES_ANY:
        # The state tolerates a whole run of characters only if the counter is far enough from the bounds.
        last = maximum - code.TOLERATED_RUN if maximum >= 0 else np.int64(code.FAR)
        if minimum <= counter <= last:
            depend(stack, counter, frame, minimum, last)
            any_character = loops[loop, code.LOOP_BASE] == code.TOLERATES_ANY
            tolerated = slices.any_character if any_character else slices.any_but_escaped
            allow_all(mask, tolerated.mask)
            return walk_tree(tables, stack, tolerated.rest, trees.same_bytes, path, mask)
        if counter > last:
            depend(stack, counter, frame, last + 1, code.FAR)
        else:
            depend(stack, counter, frame, -code.FAR, minimum - 1)
        loop = 0
    if loop == 0:
        if walked == FOLDED_TREE:
            return _walk_folded(arrays, mask)
        if walked == TREE_IF_SHORT and base >= 0 and _reads_many(tables, state):
            return np.int64(WIDE)
        return walk_vocabulary(tables, stack, trees, path, dead, mask)
    longest = np.int64(slices.body.shape[0] - 1)
    # Without a maximum, every run fits. Only a malicious table can have a counter beyond the maximum.
    room = max(maximum - counter, np.int64(0)) if maximum >= 0 else longest
    allow_all(mask, slices.body[min(room, longest)])
    path[0, PATH_STATE] = base
    if counter < minimum or room < longest:
        depend(stack, counter, frame, counter, counter)
        closing, same = slices.closing, trees.same_bytes
    else:
        # A closing quote is allowed after any number of characters, so the tails of tokens decide.
        depend(stack, counter, frame, minimum, maximum - longest if maximum >= 0 else code.FAR)
        closing, same = slices.tails, slices.same_tail
    status = walk_tree(tables, stack, closing, same, path, mask)
    if base == state or status < 0:
        return status
    put(path, 0, state, counter, frame)
    path[0, PATH_BASE_STATE] = base
    path[0, PATH_BASE_COUNTER] = counter
    path[0, PATH_BASE_FRAME] = frame
    return correct_row(tables, stack, trees, path, mask)


@njit(inline="always", **BORROWS)
def find_or_fill_mask(arrays, noting, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    """Find the mask equivalence class (configurations with equal masks) of a configuration, or compute its mask.

    Args:
        arrays: Arrays of the recognizer. The stack, the scratch space and the class table are changed.
        noting: True: if the table has no class of the configuration, add one. False: only compute the mask.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.
        mask: Receives the mask without end tokens, uint32 [words]. Unchanged if the table already has the class.
        walked: Prefix tree to walk: WHOLE_TREE (of all tokens), TREE_IF_SHORT (the same tree, unless the walk is long)
            or FOLDED_TREE (equivalent bytes share an edge).

    Returns:
        The number of the class, old or new. -1 if the mask was computed without a class: `noting` is False, or the mask
        depends on too many stack frames. CLASSES_FULL (-5) or FRAMES_FULL (-2): the caller must enlarge the class table
        or frame table, and repeat the call. WIDE (-4, only for TREE_IF_SHORT): the walk is long, so the caller must
        choose the tree.
    """
    stack, known = arrays.stack, arrays.classes
    if known.used[0] == known.classes.shape[0]:
        return np.int64(CLASSES_FULL)
    found = find_class(known, stack, state, counter, frame)
    if found >= 0:
        return found
    status = fill_mask(arrays, state, counter, frame, mask, walked)
    if status < 0:
        return status
    return note_class(known, stack, state, frame) if noting else np.int64(-1)
