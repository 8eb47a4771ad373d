"""Compiled ways to make a mask row: which tokens a configuration allows.

`arrays` are those of a recogniser (`arrays.Arrays`), `path` is as in `trie_walks`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.mask_classes import find_class, note_class
from grammar_workers.matching.kernels.step import FRAMES_FULL, arrive, begin_trace, depend, may_end
from grammar_workers.matching.kernels.trie_walks import (
    PATH_BASE_FRAME,
    PATH_BASE_REGISTER,
    PATH_BASE_STATE,
    PATH_STATE,
    allow_all,
    correct_row,
    put,
    step_from,
    walk_tree,
    walk_vocabulary,
)
from grammar_workers.numba_options import BORROWS, INNER
from grammar_workers.pushdown.instructions import (
    FAR,
    LOOP_BASE,
    LOOP_MAXIMUM,
    LOOP_MINIMUM,
    LOOP_RUN,
    STATE_LOOP,
    STATE_ROW,
    TOLERATED_RUN,
    TOLERATES_ANY,
)
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END

TREE_IF_SHORT, WHOLE_TREE, FOLDED_TREE = range(3)
"""The trees to walk for a row of which nothing is known: FOLDED_TREE for states with `pushdown.byte_classes`."""
WIDE = -4
"""In place of a class: the walk is long, and which tree is to be walked has to be chosen."""
CLASSES_FULL = -5
"""There is no room for another class: see `MaskClasses.grow`."""
_MANY_BYTES = 24
"""More than those that any JSON value begins with, and the hexadecimal digits."""
_MOST_BYTES = 110


@njit(**BORROWS, **INNER)
def _reads_many(tables, state):  # type: ignore[no-untyped-def]
    """Whether a state reads most bytes, or many ASCII characters that do not lead where `walk_branch` takes subtrees as
    a whole."""
    states, table, loops = tables.states, tables.table, tables.loops
    row = states[state, STATE_ROW]
    many = 0
    read = 0
    if row >= 0:
        for byte in range(256):
            target = table[row, byte]
            if target >= 0:
                read += 1
                loop = states[target, STATE_LOOP]
                many += byte < 0x80 and (loop == 0 or loops[loop, LOOP_RUN] < TOLERATED_RUN)
    return many >= _MANY_BYTES or read >= _MOST_BYTES


@njit(inline="always", **BORROWS)
def _allow_span(mask, tokens, first, last):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        token = tokens[i]
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@njit(inline="always", **BORROWS)
def _walk_folded(arrays, mask):  # type: ignore[no-untyped-def]
    """Set the bits of the tokens that can be read from path[0]: by the folded tree, and that of those it leaves out."""
    tables, stack, path, folded = arrays.tables, arrays.stack, arrays.path, arrays.folded
    tree, spans, tokens = folded.tree, folded.spans, folded.tokens
    # Tokens that lie side by side are allowed together: nodes have few each.
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
            _allow_span(mask, tokens, first, last)
            first = spans[node]
        last = spans[node + 1]
        put(path, depth + 1, reached, counter_there, frame_there)
        node += 1
    _allow_span(mask, tokens, first, last)
    return walk_tree(tables, stack, arrays.slices.unfolded.rest, arrays.trees.same_bytes, path, mask)


@njit(**BORROWS, **INNER)
def fill_row(arrays, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    """Fill `mask` (uint32 [words]) with the tokens that `configuration` allows, end tokens excluded.

    Inside a free JSON string, the tokens that stay inside it are a precomputed row per number of characters
    (`StringSlices.body`), and those that may close it are walked: by their tails, unless the length of the string tells
    them apart. A state whose LOOP_BASE is a state is like that one but for the texts it tells apart (declared property
    names among free ones): its row is that of the base, corrected by a walk of only what differs. A state that
    tolerates all characters has a precomputed row, too, to which a walk of the few other tokens adds. Everywhere else
    the tree is walked that `walked` tells; with TREE_IF_SHORT, the answer is WIDE where that is long.
    Returns 0, FRAMES_FULL or WIDE; the trace tells what the row depends on, and whether the text may end here, too.
    """
    tables, stack, trees, slices, path = arrays.tables, arrays.stack, arrays.trees, arrays.slices, arrays.path
    states, loops = tables.states, tables.loops
    begin_trace(stack, counter, frame)
    put(path, 0, state, counter, frame)
    if may_end(tables, stack, state, counter, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    loop = states[state, STATE_LOOP]
    base = state
    dead = np.int64(-1)
    if loop > 0 and loops[loop, LOOP_BASE] >= 0:
        base, _, _ = arrive(tables, stack, np.int64(loops[loop, LOOP_BASE]), counter, frame)
        if base == FRAMES_FULL:
            return base
        if base < 0:
            # Free texts are forbidden just now: little is allowed, and the plain walk is short.
            dead = np.int64(loops[loop, LOOP_BASE])
            loop = 0
    minimum = np.int64(loops[loop, LOOP_MINIMUM])
    maximum = np.int64(loops[loop, LOOP_MAXIMUM])
    mask[:] = 0
    if loop > 0 and loops[loop, LOOP_RUN] < TOLERATED_RUN:
        loop = 0
    if loop > 0 and loops[loop, LOOP_BASE] <= TOLERATES_ANY:
        # Near the bounds of a length, or where a guard forbids it, tolerance ends.
        last = maximum - TOLERATED_RUN if maximum >= 0 else np.int64(FAR)
        if minimum <= counter <= last:
            depend(stack, counter, frame, minimum, last)
            any_character = loops[loop, LOOP_BASE] == TOLERATES_ANY
            tolerated = slices.any_character if any_character else slices.any_but_escaped
            allow_all(mask, tolerated.mask)
            return walk_tree(tables, stack, tolerated.rest, trees.same_bytes, path, mask)
        depend(stack, counter, frame, last + 1 if counter > last else -FAR, FAR if counter > last else minimum - 1)
        loop = 0
    if loop == 0:
        if walked == FOLDED_TREE:
            return _walk_folded(arrays, mask)
        if walked == TREE_IF_SHORT and base >= 0 and _reads_many(tables, state):
            return np.int64(WIDE)
        return walk_vocabulary(tables, stack, trees, path, dead, mask)
    longest = np.int64(slices.body.shape[0] - 1)
    # With no maximum every run fits. A counter beyond the maximum can only come from a hostile table.
    room = max(maximum - counter, np.int64(0)) if maximum >= 0 else longest
    allow_all(mask, slices.body[min(room, longest)])
    path[0, PATH_STATE] = base
    if counter < minimum or room < longest:
        depend(stack, counter, frame, counter, counter)
        closing, same = slices.closing, trees.same_bytes
    else:
        # However many characters come before the quote, it may follow them.
        depend(stack, counter, frame, minimum, maximum - longest if maximum >= 0 else FAR)
        closing, same = slices.tails, slices.same_tail
    status = walk_tree(tables, stack, closing, same, path, mask)
    if base == state or status < 0:
        return status
    put(path, 0, state, counter, frame)
    path[0, PATH_BASE_STATE] = base
    path[0, PATH_BASE_REGISTER] = counter
    path[0, PATH_BASE_FRAME] = frame
    return correct_row(tables, stack, trees, path, mask)


@njit(inline="always", **BORROWS)
def make_row(arrays, noting, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    """The class of a configuration; `mask` is filled unless it was known already. With `noting`, a new one is noted.

    Returns -1 where there is no class, CLASSES_FULL, or what `fill_row` does.
    """
    stack, known = arrays.stack, arrays.classes
    if known.used[0] == known.classes.shape[0]:
        return np.int64(CLASSES_FULL)
    found = find_class(known, stack, state, counter, frame)
    if found >= 0:
        return found
    status = fill_row(arrays, state, counter, frame, mask, walked)
    if status < 0:
        return status
    return note_class(known, stack, state, frame) if noting else np.int64(-1)
