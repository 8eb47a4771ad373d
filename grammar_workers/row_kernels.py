"""Compiled walks over a prefix tree: which tokens a configuration allows (a mask row), and where they lead.

`tables` and `stack` are as in `kernels`, `slices` is `StringSlice.tables`, `trees` is `Vocabulary.trees` (the tree of
all tokens, the chain of tokens with equal bytes, the fans of the tree). `path` (int64 [depth + 2, 6]) is scratch space
for the configuration at each depth of a tree; path[0] is where a walk starts.

numba keeps compiled code by the file that a function stands in: whoever changes `kernels` must touch this file, too.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.byte_classes import QUOTE
from grammar_workers.kernels import (
    DEAD,
    EXIT,
    FAR,
    FRAMES_FULL,
    LIT,
    LOOP,
    LOOP_BASE,
    LOOP_MAXIMUM,
    LOOP_MINIMUM,
    OPTIONS,
    ROW,
    SILENT_MOVES,
    TOLERATES_ANY,
    arrive,
    begin_trace,
    bucket_of,
    depend,
    leave,
    may_end,
    step,
)
from grammar_workers.prefix_tree import BYTE, DEPTH, END, TOKEN
from grammar_workers.row_classes import find_class, note_class
from grammar_workers.string_slice import LONGEST_RUN

FOUND_FULL = -3
WIDE, ENTERS_STRING = -4, -5
"""Nothing is known about this row, and the walk is long: see `fill_folded_row` and `fill_entering_row`."""
_MANY_BYTES = 32


@njit(inline="always", **OPTIONS)
def _allow(mask, same, token):  # type: ignore[no-untyped-def]
    """Set the bits of `token` (may be -1) and of all tokens with the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        token = same[token]


@njit(**OPTIONS)
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


@njit(inline="always", **OPTIONS)
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


@njit(**OPTIONS)
def walk_vocabulary(tables, stack, trees, path, dead, mask):  # type: ignore[no-untyped-def]
    """The same over the tree of all tokens.

    Most states read few bytes, and the subtrees of a node lie far apart: where a node has many children, the dead ones
    are not even looked at (`prefix_tree.build_fans`). `dead` is a state (or -1) that cannot be entered with the
    register and the frame of path[0]: what leads where it leads is dead, too.
    Bytes that the first state does not read itself are left to its callers, each of which is gone back to once.
    """
    tree, _, _, fans = trees
    taken = np.zeros(256, np.bool_)
    for _ in range(SILENT_MOVES):
        state = path[0, 0]
        node = _next_child(tables, fans, 0, state, np.int64(0), dead)
        while node >= 0:
            byte = np.int64(tree[node, BYTE])
            if not taken[byte]:
                taken[byte] = True
                status = _walk_branch(tables, stack, trees, path, dead, node, mask)
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


@njit(**OPTIONS)
def _walk_branch(tables, stack, trees, path, dead, i, mask):  # type: ignore[no-untyped-def]
    """`walk_tree` over node `i` of the tree of all tokens and what is below it.

    path[depth, 3:]: the fan of the node whose children stand at `depth` (-1: look at all of them), where its subtree
    ends, and the state `dead` as far as it is still known to be dead there.
    """
    states, loops = tables[0], tables[5]
    tree, same, fan_of, fans = trees
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
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        # What a state does not read itself, its callers may.
        path[depth + 1, 3] = np.int64(fan_of[i]) if states[state, EXIT] < 0 else np.int64(-1)
        path[depth + 1, 4] = np.int64(tree[i, END])
        unmoved = register == path[0, 1] and frame == path[0, 2]
        like_before = states[state, LOOP] > 0 and loops[states[state, LOOP], LOOP_BASE] == dead
        path[depth + 1, 5] = dead if unmoved and like_before else np.int64(-1)
        _allow(mask, same, tree[i, TOKEN])
        i += 1
    return np.int64(0)


@njit(**OPTIONS)
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


@njit(**OPTIONS)
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


@njit(**OPTIONS)
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


@njit(**OPTIONS)
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


@njit(**OPTIONS)
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
            status = _walk_branch(tables, stack, trees, path, np.int64(-1), node, mask)
            if status < 0:
                return status
    inside, path[0, 1], path[0, 2] = step(tables, stack, state, register, frame, first)
    if inside < 0:
        return inside if inside == FRAMES_FULL else np.int64(0)
    path[0, 0] = inside
    loop = states[inside, LOOP]
    minimum, maximum = np.int64(loops[loop, LOOP_MINIMUM]), np.int64(loops[loop, LOOP_MAXIMUM])
    return _fill_loop(tables, stack, runs, path, minimum, maximum, mask)


@njit(**OPTIONS)
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
            mask[:] = any_mask if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_mask
            return walk_tree(tables, stack, rest, trees[1], 0, rest.shape[0], path, mask)
        depend(stack, register, frame, last + 1 if register > last else -FAR, FAR if register > last else minimum - 1)
        loop = 0
    if loop == 0:
        if not whole and base >= 0:
            enters = _enters_string(tables, stack, state, register, frame)
            if enters:
                return enters if enters == FRAMES_FULL else np.int64(ENTERS_STRING)
            if _reads_many(tables, state):
                return np.int64(WIDE)
        mask[:] = 0
        return walk_vocabulary(tables, stack, trees, path, dead, mask)
    mask[:] = 0
    path[0, 0] = base
    status = _fill_loop(tables, stack, slices, path, np.int64(loops[loop, LOOP_MINIMUM]), maximum, mask)
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


@njit(**OPTIONS)
def make_row(tables, stack, trees, slices, path, known, noting, state, register, frame, mask):  # type: ignore[no-untyped-def]
    """The class of a configuration; `mask` is filled unless it was known already. With `noting`, a new one is noted.

    `known` is `RowClasses.tables`, with room for one more. Returns -1 where there is no class, or FRAMES_FULL, WIDE or
    ENTERS_STRING as `fill_row` does.
    """
    found = find_class(known, stack, state, register, frame)
    if found >= 0:
        return found
    status = fill_row(tables, stack, trees, slices, path, state, register, frame, mask, False)
    if status < 0:
        return status
    return note_class(known, stack, state, frame) if noting else np.int64(-1)


@njit(**OPTIONS)
def _reads_many(tables, state):  # type: ignore[no-untyped-def]
    row = tables[0][state, ROW]
    many = 0
    if row >= 0:
        for byte in range(256):
            many += tables[1][row, byte] >= 0
    return many >= _MANY_BYTES


@njit(**OPTIONS)
def fill_folded_row(  # type: ignore[no-untyped-def]
    tables, stack, trees, folded, quoted, path, state, register, frame, mask
):
    """`fill_row` for a state whose bytes are classed (`byte_classes`): walks the folded tree and that of quotes.

    `folded` is `FoldedTree.tables`, `quoted` is `Vocabulary.quoted_tree`. Returns 0 or FRAMES_FULL.
    """
    parents, bytes_read, spans, tokens = folded
    begin_trace(stack, register, frame)
    if may_end(tables, stack, state, register, frame) == FRAMES_FULL:
        return np.int64(FRAMES_FULL)
    mask[:] = 0
    reached = np.empty((parents.shape[0], 3), np.int64)
    reached[0, 0] = state
    reached[0, 1] = register
    reached[0, 2] = frame
    for node in range(1, parents.shape[0]):
        parent = parents[node]
        following = reached[parent, 0]
        if following >= 0:
            following, reached[node, 1], reached[node, 2] = step(
                tables, stack, following, reached[parent, 1], reached[parent, 2], bytes_read[node]
            )
            if following == FRAMES_FULL:
                return following
        reached[node, 0] = following
        if following >= 0:
            for i in range(spans[node], spans[node + 1]):
                token = tokens[i]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    return walk_tree(tables, stack, quoted, trees[1], 0, quoted.shape[0], path, mask)


@njit(inline="always", **OPTIONS)
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


@njit(**OPTIONS)
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


@njit(**OPTIONS)
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


@njit(inline="always", **OPTIONS)
def place_of(found, seen, many, first, second, third):  # type: ignore[no-untyped-def]
    """The place of three integers among the `many` rows of `found`; `many` when they are new and were put there.

    `seen` (int32 [power of two], filled with -1) is the hash table. FOUND_FULL when `found` is full.
    """
    slot = bucket_of(seen, first, second, third)
    while seen[slot] >= 0:
        other = np.int64(seen[slot])
        if found[other, 0] == first and found[other, 1] == second and found[other, 2] == third:
            return other
        slot = (slot + 1) & (seen.shape[0] - 1)
    if many >= found.shape[0]:
        return np.int64(FOUND_FULL)
    found[many, 0] = first
    found[many, 1] = second
    found[many, 2] = third
    seen[slot] = many
    return np.int64(many)


@njit(**OPTIONS)
def find_targets(tables, stack, tree, path, base, found, seen, many):  # type: ignore[no-untyped-def]
    """Find where the tokens of a prefix tree lead from path[0]; `found`, `seen` and the result are as in `successors`.

    What follows the arrival at a place where `base` (a state, or -1) leads, too, or in a plain loop state, is left out.
    """
    states, loops = tables[0], tables[5]
    path[0, 3] = base
    path[0, 4] = path[0, 1]
    path[0, 5] = path[0, 2]
    i = np.int64(0)
    while i < tree.shape[0]:
        depth = tree[i, DEPTH]
        state, register, frame = step(tables, stack, path[depth, 0], path[depth, 1], path[depth, 2], tree[i, BYTE])
        if state == FRAMES_FULL:
            return state
        if state < 0:
            i = np.int64(tree[i, END])
            continue
        if tree[i, TOKEN] >= 0:
            place = place_of(found, seen, many, state, register, frame)
            if place < 0:
                return place
            many = max(many, place + 1)
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        if base >= 0:
            loop = states[state, LOOP]
            alike, register_there, frame_there = path[depth, 3], path[depth, 4], path[depth, 5]
            if alike >= 0:
                alike, register_there, frame_there = step(
                    tables, stack, alike, register_there, frame_there, tree[i, BYTE]
                )
            if alike == FRAMES_FULL:
                return alike
            same = alike == state and register_there == register and frame_there == frame
            if same or (loop > 0 and loops[loop, LOOP_BASE] == DEAD and frame == path[0, 2]):
                i = np.int64(tree[i, END])
                continue
            path[depth + 1, 3] = alike
            path[depth + 1, 4] = register_there
            path[depth + 1, 5] = frame_there
        i += 1
    return many


@njit(**OPTIONS)
def successors(tables, stack, trees, slices, path, state, register, frame, found, seen):  # type: ignore[no-untyped-def]
    """Find the distinct configurations that any token leads to from (state, register, frame).

    They go into `found` (int64 [capacity, 3]); `seen` (int32 [power of two], filled with -1) is the hash table that
    removes repeats. Returns how many were found, FRAMES_FULL, or FOUND_FULL.

    Inside a free string only the condensed tree is walked. A state that resembles another leads where that one does,
    and to what it tells apart.
    """
    states, loops = tables[0], tables[5]
    tree, condensed = trees[0], slices[9]
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    loop = states[state, LOOP]
    if loop == 0 or loops[loop, LOOP_BASE] <= TOLERATES_ANY:
        return find_targets(tables, stack, tree, path, np.int64(-1), found, seen, np.int64(0))
    many = find_targets(tables, stack, condensed, path, np.int64(-1), found, seen, np.int64(0))
    base = np.int64(loops[loop, LOOP_BASE])
    if many < 0 or base < 0:
        return many
    base, register, frame = arrive(tables, stack, base, register, frame)
    if base == FRAMES_FULL:
        return base
    if base < 0:
        return find_targets(tables, stack, tree, path, np.int64(-1), found, seen, many)
    many = find_targets(tables, stack, tree, path, base, found, seen, many)
    if many < 0:
        return many
    path[0, 0] = base
    path[0, 1] = register
    path[0, 2] = frame
    return find_targets(tables, stack, condensed, path, np.int64(-1), found, seen, many)


@njit(**OPTIONS)
def after_ascii(tables, stack, known, state, register, frame, found):  # type: ignore[no-untyped-def]
    """Find the distinct configurations that bytes below 128 lead to from (state, register, frame).

    They go into `found` (int64 [128, 5]), with whether the text may stop there and their class in `known`
    (`RowClasses.tables`), or -1. Returns how many there are, or FRAMES_FULL.
    """
    states, table = tables[0], tables[1]
    many = np.int64(0)
    taken = np.zeros(128, np.bool_)
    for _ in range(SILENT_MOVES):
        row = states[state, ROW]
        before = np.int64(DEAD)
        for byte in range(128):
            direct = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
            literal = states[state, LIT] == byte
            if taken[byte] or (direct < 0 and not literal):
                continue
            taken[byte] = True
            if direct == before and not literal:
                continue
            before = direct
            reached, register_there, frame_there = step(tables, stack, state, register, frame, byte)
            if reached == FRAMES_FULL:
                return reached
            repeated = reached < 0
            for i in range(many):
                repeated |= found[i, 0] == reached and found[i, 1] == register_there and found[i, 2] == frame_there
            if not repeated:
                found[many, 0] = reached
                found[many, 1] = register_there
                found[many, 2] = frame_there
                many += 1
        # What is left is read by the caller.
        state, register, frame = leave(tables, stack, state, register, frame)
        if state < 0:
            if state == FRAMES_FULL:
                return state
            break
    for i in range(many):
        found[i, 3] = may_end(tables, stack, found[i, 0], found[i, 1], found[i, 2])
        if found[i, 3] == FRAMES_FULL:
            return np.int64(FRAMES_FULL)
        found[i, 4] = find_class(known, stack, found[i, 0], found[i, 1], found[i, 2])
    return many
