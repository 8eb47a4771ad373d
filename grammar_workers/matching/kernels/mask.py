"""Compiled ways to make a mask row: which tokens a configuration allows.

`tables` and `stack` are as in `kernels`, `trees` and `path` as in `tree_walks`, `slices` is `StringSlice.tables`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.mask_classes import find_class, note_class
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
    TOLERATES_ANY,
    arrive,
    begin_trace,
    depend,
    may_end,
    step,
)
from grammar_workers.matching.kernels.trie_walks import correct_row, walk_branch, walk_tails, walk_tree, walk_vocabulary
from grammar_workers.vocabulary.folded_trie import QUOTE
from grammar_workers.vocabulary.slices import LONGEST_RUN
from grammar_workers.vocabulary.trie import BYTE, DEPTH, END

WIDE, ENTERS_STRING = -4, -5
"""Nothing is known about this row, and the walk is long: see `fill_folded_row` and `fill_entering_row`."""
CLASSES_FULL = -6
"""There is no room for another class: see `RowClasses.grow`."""
_MANY_BYTES = 32


@njit(**BORROWS)
def _fill_loop(tables, stack, runs, path, minimum, maximum, mask):  # type: ignore[no-untyped-def]
    """Add the tokens of `runs` (`string_slice.Runs`) that may follow path[0], a state of a free string or like one.

    Its strings have `minimum` to `maximum` characters (-1: any number). Returns 0 or FRAMES_FULL.
    """
    body = runs[0]
    state, register, frame = path[0, 0], path[0, 1], path[0, 2]
    longest = np.int64(body.shape[0] - 1)
    # With no maximum every run fits; the register then saturates at the minimum. A register beyond the maximum can
    # only come from a hostile table.
    room = max(maximum - register, np.int64(0)) if maximum >= 0 else longest
    if register < minimum or room < longest:
        depend(stack, register, frame, register, register)
    else:
        depend(stack, register, frame, minimum, maximum - longest if maximum >= 0 else FAR)
    mask |= body[min(room, longest)]
    quoted, register_after, frame_after = step(tables, stack, state, max(register, minimum), frame, np.uint8(QUOTE))
    if quoted < 0:
        return quoted if quoted == FRAMES_FULL else np.int64(0)
    path[0, 0] = quoted
    path[0, 1] = register_after
    path[0, 2] = frame_after
    return walk_tails(tables, stack, runs, path, minimum - register, room if maximum >= 0 else np.int64(1 << 30), mask)


@njit(**BORROWS)
def common_target(tables, state):  # type: ignore[no-untyped-def]
    """Where several bytes lead from `state`, and one of these bytes; (-1, -1) when every byte goes its own way."""
    states, table = tables[0], tables[1]
    row = states[state, ROW]
    if row >= 0 and states[state, EXIT] < 0:
        before = np.int64(DEAD)
        for byte in range(256):
            target = np.int64(table[row, byte])
            if target >= 0 and byte != QUOTE and byte != states[state, LIT]:
                if target == before:
                    return target, np.int64(byte)
                before = target
    return np.int64(DEAD), np.int64(-1)


@njit(**BORROWS)
def _enters_string(tables, stack, state, register, frame):  # type: ignore[no-untyped-def]
    """1 when several bytes lead from here into a free string (as within an escape sequence), 0, or FRAMES_FULL."""
    states, loops = tables[0], tables[5]
    _, byte = common_target(tables, state)
    if byte < 0:
        return np.int64(0)
    inside, _, _ = step(tables, stack, state, register, frame, byte)
    if inside < 0:
        return inside if inside == FRAMES_FULL else np.int64(0)
    return np.int64(states[inside, LOOP] > 0 and loops[states[inside, LOOP], LOOP_BASE] == DEAD)


@njit(**BORROWS)
def fill_entering_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, runs, entering, path, state, register, frame, mask
):
    """`fill_row` for a state from which the bytes marked in `entering` (bool [256]) lead into the same free string.

    `runs` is what follows these bytes (`string_slice.runs_after`). Returns 0 or FRAMES_FULL.
    """
    states, loops = tables[0], tables[5]
    begin_trace(stack, register, frame)
    if may_end(tables, stack, state, register, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    mask[:] = 0
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    first = np.int64(-1)
    for byte in range(256):
        node = np.int64(trees[3][0, byte])
        if entering[byte]:
            first = np.int64(byte)
        elif node >= 0 and (states[state, LIT] == byte or tables[1][states[state, ROW], byte] >= 0):
            status = walk_branch(tables, stack, trees, path, np.int64(-1), node, mask)
            if status < 0:
                return status
    inside, path[0, 1], path[0, 2] = step(tables, stack, state, register, frame, first)
    if inside < 0:
        return inside if inside == FRAMES_FULL else np.int64(0)
    path[0, 0] = inside
    loop = states[inside, LOOP]
    minimum, maximum = np.int64(loops[loop, LOOP_MINIMUM]), np.int64(loops[loop, LOOP_MAXIMUM])
    return _fill_loop(tables, stack, runs, path, minimum, maximum, mask)


@njit(**BORROWS)
def fill_row(tables, stack, trees, slices, path, state, register, frame, mask, whole):  # type: ignore[no-untyped-def]
    """Fill `mask` (uint32 [words], zeroed here) with the tokens that `configuration` allows, end tokens excluded.

    Inside a free JSON string (`LOOP`), the tokens that stay inside it are a precomputed row per number of characters
    (`body`, uint32 [longest + 1, words]) and those that close it are walked by what follows the quote. A state with a
    LOOP_BASE is like that base state but for the texts it tells apart (declared property names among free ones): its
    row is that of the base, corrected by a walk of only what differs. A state that tolerates all characters has a
    precomputed row, too, to which a walk of the few other tokens adds. Everywhere else the whole tree is walked; where
    that is long, only if `whole`, and otherwise the answer is WIDE or ENTERS_STRING.
    Returns 0, FRAMES_FULL, WIDE or ENTERS_STRING; the trace tells what the row depends on, and whether the text may end
    here, too.
    """
    states, loops = tables[0], tables[5]
    any_mask, any_rest, unescaped_mask, unescaped_rest = slices[5], slices[6], slices[7], slices[8]
    begin_trace(stack, register, frame)
    if may_end(tables, stack, state, register, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    loop = states[state, LOOP]
    base = state
    dead = np.int64(-1)
    if loop > 0 and loops[loop, LOOP_BASE] >= 0:
        base, _, _ = arrive(tables, stack, np.int64(loops[loop, LOOP_BASE]), register, frame)
        if base == FRAMES_FULL:
            return base
        if base < 0:
            # Free texts are forbidden just now: little is allowed, and the plain walk is short.
            dead = np.int64(loops[loop, LOOP_BASE])
            loop = 0
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    minimum = np.int64(loops[loop, LOOP_MINIMUM])
    maximum = np.int64(loops[loop, LOOP_MAXIMUM])
    if loop > 0 and loops[loop, LOOP_BASE] <= TOLERATES_ANY:
        # Near the bounds of a length, or where a guard forbids it, tolerance ends.
        last = maximum - LONGEST_RUN if maximum >= 0 else np.int64(FAR)
        if minimum <= register <= last:
            depend(stack, register, frame, minimum, last)
            rest = any_rest if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_rest
            mask[:] = 0
            mask |= any_mask if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_mask
            return walk_tree(tables, stack, rest, trees[1], 0, rest.shape[0], path, mask)
        depend(stack, register, frame, last + 1 if register > last else -FAR, FAR if register > last else minimum - 1)
        loop = 0
    if loop == 0:
        if not whole and base >= 0:
            if _reads_many(tables, state):
                return np.int64(WIDE)
            enters = _enters_string(tables, stack, state, register, frame)
            if enters:
                return enters if enters == FRAMES_FULL else np.int64(ENTERS_STRING)
        mask[:] = 0
        return walk_vocabulary(tables, stack, trees, path, dead, mask)
    mask[:] = 0
    path[0, 0] = base
    status = _fill_loop(tables, stack, slices, path, minimum, maximum, mask)
    if status < 0:
        return status
    if base == state:
        return np.int64(0)
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    path[0, 3] = base
    path[0, 4] = register
    path[0, 5] = frame
    return correct_row(tables, stack, trees, path, mask)


@njit(**BORROWS)
def make_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, slices, path, known, noting, state, register, frame, mask, whole
):
    """The class of a configuration; `mask` is filled unless it was known already. With `noting`, a new one is noted.

    `known` is `RowClasses.tables`. Returns -1 where there is no class, CLASSES_FULL, or what `fill_row` does.
    """
    if known[2][0] == known[0].shape[0]:
        return np.int64(CLASSES_FULL)
    found = find_class(known, stack, state, register, frame)
    if found >= 0:
        return found
    status = fill_row(tables, stack, trees, slices, path, state, register, frame, mask, whole)
    if status < 0:
        return status
    return note_class(known, stack, state, frame) if noting else np.int64(-1)


@njit(**BORROWS)
def _reads_many(tables, state):  # type: ignore[no-untyped-def]
    row = tables[0][state, ROW]
    many = 0
    if row >= 0:
        for byte in range(256):
            many += tables[1][row, byte] >= 0
    return many >= _MANY_BYTES


@njit(**BORROWS)
def fill_folded_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, folded, quoted, path, state, register, frame, mask
):
    """`fill_row` for a state whose bytes are classed (`byte_classes`): walks the folded tree and that of quotes.

    `folded` is `FoldedTree.tables`, `quoted` is `Vocabulary.quoted_tree`. Returns 0 or FRAMES_FULL.
    """
    tree, spans, tokens = folded
    begin_trace(stack, register, frame)
    if may_end(tables, stack, state, register, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    mask[:] = 0
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    node = np.int64(0)
    while node < tree.shape[0]:
        depth = tree[node, DEPTH]
        reached, register_there, frame_there = step(
            tables, stack, path[depth, 0], path[depth, 1], path[depth, 2], np.uint8(tree[node, BYTE])
        )
        if reached < 0:
            if reached == FRAMES_FULL:
                return reached
            node = np.int64(tree[node, END])
            continue
        path[depth + 1, 0] = reached
        path[depth + 1, 1] = register_there
        path[depth + 1, 2] = frame_there
        for i in range(spans[node], spans[node + 1]):
            token = tokens[i]
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        node += 1
    return walk_tree(tables, stack, quoted, trees[1], 0, quoted.shape[0], path, mask)
