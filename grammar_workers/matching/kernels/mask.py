"""Compiled ways to make a mask row: which tokens a configuration allows.

`tables` and `stack` are as in `step`, `trees` and `path` as in `trie_walks`, `slices` is a `StringSlice`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.matching.kernels.mask_classes import find_class, note_class
from grammar_workers.matching.kernels.step import FRAMES_FULL, arrive, begin_trace, depend, may_end, step
from grammar_workers.matching.kernels.trie_walks import (
    PATH_BASE_FRAME,
    PATH_BASE_REGISTER,
    PATH_BASE_STATE,
    PATH_FRAME,
    PATH_REGISTER,
    PATH_STATE,
    correct_row,
    put,
    step_from,
    walk_branch,
    walk_tails,
    walk_tree,
    walk_vocabulary,
)
from grammar_workers.numba_options import BORROWS
from grammar_workers.pushdown.instructions import (
    DEAD,
    FAR,
    FREE_STRING,
    LOOP_BASE,
    LOOP_MAXIMUM,
    LOOP_MINIMUM,
    STATE_EXIT,
    STATE_LITERAL,
    STATE_LOOP,
    STATE_ROW,
    TOLERATED_RUN,
    TOLERATES_ANY,
)
from grammar_workers.pushdown.json_text import QUOTE
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END

WIDE, ENTERS_STRING = -4, -5
"""Nothing is known about this row, and the walk is long: see `fill_folded_row` and `fill_entering_row`."""
CLASSES_FULL = -6
"""There is no room for another class: see `MaskClasses.grow`."""
_MANY_BYTES = 32


@njit(**BORROWS)
def _fill_loop(tables, stack, runs, path, minimum, maximum, mask):  # type: ignore[no-untyped-def]
    """Add the tokens of `runs` (`slices.Runs`) that may follow path[0], a state of a free string or like one.

    Its strings have `minimum` to `maximum` characters (-1: any number). Returns 0 or FRAMES_FULL.
    """
    body = runs.body
    state, counter, frame = path[0, PATH_STATE], path[0, PATH_REGISTER], path[0, PATH_FRAME]
    longest = np.int64(body.shape[0] - 1)
    # With no maximum every run fits; the counter then saturates at the minimum. A counter beyond the maximum can
    # only come from a hostile table.
    room = max(maximum - counter, np.int64(0)) if maximum >= 0 else longest
    if counter < minimum or room < longest:
        depend(stack, counter, frame, counter, counter)
    else:
        depend(stack, counter, frame, minimum, maximum - longest if maximum >= 0 else FAR)
    mask |= body[min(room, longest)]
    quoted, counter_after, frame_after = step(tables, stack, state, max(counter, minimum), frame, np.uint8(QUOTE))
    if quoted < 0:
        return quoted if quoted == FRAMES_FULL else np.int64(0)
    put(path, 0, quoted, counter_after, frame_after)
    return walk_tails(tables, stack, runs, path, minimum - counter, room if maximum >= 0 else np.int64(1 << 30), mask)


@njit(**BORROWS)
def common_target(tables, state):  # type: ignore[no-untyped-def]
    """Where several bytes lead from `state`, and one of these bytes; (-1, -1) when every byte goes its own way."""
    states, table = tables.states, tables.table
    row = states[state, STATE_ROW]
    if row >= 0 and states[state, STATE_EXIT] < 0:
        before = np.int64(DEAD)
        for byte in range(256):
            target = np.int64(table[row, byte])
            if target >= 0 and byte != QUOTE and byte != states[state, STATE_LITERAL]:
                if target == before:
                    return target, np.int64(byte)
                before = target
    return np.int64(DEAD), np.int64(-1)


@njit(**BORROWS)
def _enters_string(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """1 when several bytes lead from here into a free string (as within an escape sequence), 0, or FRAMES_FULL."""
    states, loops = tables.states, tables.loops
    _, byte = common_target(tables, state)
    if byte < 0:
        return np.int64(0)
    inside, _, _ = step(tables, stack, state, counter, frame, byte)
    if inside < 0:
        return inside if inside == FRAMES_FULL else np.int64(0)
    return np.int64(states[inside, STATE_LOOP] > 0 and loops[states[inside, STATE_LOOP], LOOP_BASE] == FREE_STRING)


@njit(**BORROWS)
def fill_entering_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, runs, entering, path, state, counter, frame, mask
):
    """`fill_row` for a state from which the bytes marked in `entering` (bool [256]) lead into the same free string.

    `runs` is what follows these bytes (`slices.runs_after`). Returns 0 or FRAMES_FULL.
    """
    states, loops = tables.states, tables.loops
    begin_trace(stack, counter, frame)
    if may_end(tables, stack, state, counter, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    mask[:] = 0
    put(path, 0, state, counter, frame)
    first = np.int64(-1)
    for byte in range(256):
        node = np.int64(trees.fans[0, byte])
        if entering[byte]:
            first = np.int64(byte)
        elif node >= 0 and (states[state, STATE_LITERAL] == byte or tables.table[states[state, STATE_ROW], byte] >= 0):
            status = walk_branch(tables, stack, trees, path, np.int64(-1), node, mask)
            if status < 0:
                return status
    inside, path[0, PATH_REGISTER], path[0, PATH_FRAME] = step(tables, stack, state, counter, frame, first)
    if inside < 0:
        return inside if inside == FRAMES_FULL else np.int64(0)
    path[0, PATH_STATE] = inside
    loop = states[inside, STATE_LOOP]
    minimum, maximum = np.int64(loops[loop, LOOP_MINIMUM]), np.int64(loops[loop, LOOP_MAXIMUM])
    return _fill_loop(tables, stack, runs, path, minimum, maximum, mask)


@njit(**BORROWS)
def fill_row(tables, stack, trees, slices, path, state, counter, frame, mask, whole):  # type: ignore[no-untyped-def]
    """Fill `mask` (uint32 [words], zeroed here) with the tokens that `configuration` allows, end tokens excluded.

    Inside a free JSON string, the tokens that stay inside it are a precomputed row per number of characters
    (`Runs.body`) and those that close it are walked by what follows the quote. A state whose LOOP_BASE is a state is
    like that one but for the texts it tells apart (declared property names among free ones): its row is that of the
    base, corrected by a walk of only what differs. A state that tolerates all characters has a precomputed row, too, to
    which a walk of the few other tokens adds. Everywhere else the whole tree is walked; where that is long, only if
    `whole`, and otherwise the answer is WIDE or ENTERS_STRING.
    Returns 0, FRAMES_FULL, WIDE or ENTERS_STRING; the trace tells what the row depends on, and whether the text may end
    here, too.
    """
    states, loops = tables.states, tables.loops
    begin_trace(stack, counter, frame)
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
    put(path, 0, state, counter, frame)
    minimum = np.int64(loops[loop, LOOP_MINIMUM])
    maximum = np.int64(loops[loop, LOOP_MAXIMUM])
    if loop > 0 and loops[loop, LOOP_BASE] <= TOLERATES_ANY:
        # Near the bounds of a length, or where a guard forbids it, tolerance ends.
        last = maximum - TOLERATED_RUN if maximum >= 0 else np.int64(FAR)
        if minimum <= counter <= last:
            depend(stack, counter, frame, minimum, last)
            any_character = loops[loop, LOOP_BASE] == TOLERATES_ANY
            tolerance = slices.any_character if any_character else slices.any_but_escaped
            mask[:] = 0
            mask |= tolerance.mask
            return walk_tree(tables, stack, tolerance.rest, trees.same_bytes, 0, tolerance.rest.shape[0], path, mask)
        depend(stack, counter, frame, last + 1 if counter > last else -FAR, FAR if counter > last else minimum - 1)
        loop = 0
    if loop == 0:
        if not whole and base >= 0:
            if _reads_many(tables, state):
                return np.int64(WIDE)
            enters = _enters_string(tables, stack, state, counter, frame)
            if enters:
                return enters if enters == FRAMES_FULL else np.int64(ENTERS_STRING)
        mask[:] = 0
        return walk_vocabulary(tables, stack, trees, path, dead, mask)
    mask[:] = 0
    path[0, PATH_STATE] = base
    status = _fill_loop(tables, stack, slices.runs, path, minimum, maximum, mask)
    if status < 0:
        return status
    if base == state:
        return np.int64(0)
    put(path, 0, state, counter, frame)
    path[0, PATH_BASE_STATE] = base
    path[0, PATH_BASE_REGISTER] = counter
    path[0, PATH_BASE_FRAME] = frame
    return correct_row(tables, stack, trees, path, mask)


@njit(**BORROWS)
def make_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, slices, path, known, noting, state, counter, frame, mask, whole
):
    """The class of a configuration; `mask` is filled unless it was known already. With `noting`, a new one is noted.

    `known` is `MaskClasses.tables`. Returns -1 where there is no class, CLASSES_FULL, or what `fill_row` does.
    """
    if known.used[0] == known.classes.shape[0]:
        return np.int64(CLASSES_FULL)
    found = find_class(known, stack, state, counter, frame)
    if found >= 0:
        return found
    status = fill_row(tables, stack, trees, slices, path, state, counter, frame, mask, whole)
    if status < 0:
        return status
    return note_class(known, stack, state, frame) if noting else np.int64(-1)


@njit(**BORROWS)
def _reads_many(tables, state):  # type: ignore[no-untyped-def]
    row = tables.states[state, STATE_ROW]
    many = 0
    if row >= 0:
        for byte in range(256):
            many += tables.table[row, byte] >= 0
    return many >= _MANY_BYTES


@njit(**BORROWS)
def fill_folded_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, folded, quoted, path, state, counter, frame, mask
):
    """`fill_row` for a state with `pushdown.byte_classes`: walks the folded tree and that of quotes.

    `folded` is a `FoldedTree`, `quoted` is `Vocabulary.quoted_tree`. Returns 0 or FRAMES_FULL.
    """
    tree, spans, tokens = folded.tree, folded.spans, folded.tokens
    begin_trace(stack, counter, frame)
    if may_end(tables, stack, state, counter, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    mask[:] = 0
    put(path, 0, state, counter, frame)
    node = np.int64(0)
    while node < tree.shape[0]:
        depth = tree[node, TRIE_DEPTH]
        reached, counter_there, frame_there = step_from(tables, stack, path, depth, np.uint8(tree[node, TRIE_BYTE]))
        if reached < 0:
            if reached == FRAMES_FULL:
                return reached
            node = np.int64(tree[node, TRIE_END])
            continue
        put(path, depth + 1, reached, counter_there, frame_there)
        for i in range(spans[node], spans[node + 1]):
            token = tokens[i]
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        node += 1
    return walk_tree(tables, stack, quoted, trees.same_bytes, 0, quoted.shape[0], path, mask)
