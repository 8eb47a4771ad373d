"""Compiled walks over a prefix tree: which tokens a configuration allows (a mask row), and where they lead.

`tables` and `stack` are as in `kernels`, `slices` is `StringSlice.tables`, `trees` is `Vocabulary.trees` (the tree of
all tokens, and the chain of tokens with equal bytes). `path` (int64 [depth + 2, 3]) is scratch space for the
configuration at each depth of a tree; path[0] is where a walk starts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.kernels import (
    DEAD,
    FRAMES_FULL,
    LOOP,
    LOOP_BASE,
    LOOP_MAXIMUM,
    LOOP_MINIMUM,
    OPTIONS,
    TOLERATES_ANY,
    arrive,
    bucket_of,
    step,
)
from grammar_workers.prefix_tree import BYTE, DEPTH, END, TOKEN
from grammar_workers.string_slice import LONGEST_RUN

FOUND_FULL = -3


@njit(inline="always", **OPTIONS)
def _allow(mask, same, token):  # type: ignore[no-untyped-def]
    """Set the bits of `token` (may be -1) and of all tokens with the same bytes."""
    while token >= 0:
        mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        token = same[token]


@njit(**OPTIONS)
def walk_tree(tables, stack, tree, same, path, mask):  # type: ignore[no-untyped-def]
    """Set the bits of every token of a prefix tree that can be read from path[0]. Returns 0 or FRAMES_FULL."""
    i = np.int64(0)
    while i < tree.shape[0]:
        depth = tree[i, DEPTH]
        state, register, frame = step(
            tables,
            stack,
            path[depth, 0],
            path[depth, 1],
            path[depth, 2],
            tree[i, BYTE],
        )
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
def fill_row(tables, stack, trees, slices, path, state, register, frame, mask):  # type: ignore[no-untyped-def]
    """Fill `mask` (uint32 [words], zeroed here) with the tokens that `configuration` allows, end tokens excluded.

    Inside a free JSON string (`LOOP`), the tokens that stay inside it are a precomputed row per number of characters
    (`body`, uint32 [longest + 1, words]) and those that close it are walked by what follows the quote. A state with a
    LOOP_BASE is like that base state but for the texts it tells apart (declared property names among free ones): its
    row is that of the base, corrected by a walk of only what differs. A state that tolerates all characters has a
    precomputed row, too, to which a walk of the few other tokens adds. Everywhere else the whole tree is walked.
    Returns 0 or FRAMES_FULL.
    """
    states, loops = tables[0], tables[5]
    tree, same = trees
    body, any_mask, any_rest, unescaped_mask, unescaped_rest = slices[0], slices[5], slices[6], slices[7], slices[8]
    loop = states[state, LOOP]
    base = state
    if loop > 0 and loops[loop, LOOP_BASE] >= 0:
        # Where free texts are forbidden just now, little is allowed, and the plain walk is short.
        base, _, _ = arrive(
            tables,
            stack,
            np.int64(loops[loop, LOOP_BASE]),
            register,
            frame,
        )
        if base == FRAMES_FULL:
            return base
        if base < 0:
            loop = 0
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    if loop > 0 and loops[loop, LOOP_BASE] <= TOLERATES_ANY:
        # Near the bounds of a length, or where a guard forbids it, tolerance ends.
        fits = loops[loop, LOOP_MAXIMUM] < 0 or register + LONGEST_RUN <= loops[loop, LOOP_MAXIMUM]
        if fits and register >= loops[loop, LOOP_MINIMUM]:
            rest = any_rest if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_rest
            mask[:] = any_mask if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_mask
            return walk_tree(tables, stack, rest, same, path, mask)
        loop = 0
    if loop == 0:
        mask[:] = 0
        return walk_tree(tables, stack, tree, same, path, mask)
    minimum = np.int64(loops[loop, LOOP_MINIMUM])
    maximum = np.int64(loops[loop, LOOP_MAXIMUM])
    longest = np.int64(body.shape[0] - 1)
    # With no maximum every run fits; the register then saturates at the minimum. A register beyond the maximum can
    # only come from a hostile table.
    room = max(maximum - register, np.int64(0)) if maximum >= 0 else longest
    mask[:] = body[min(room, longest)]
    quoted, register_after, frame_after = step(
        tables,
        stack,
        base,
        max(register, minimum),
        frame,
        np.uint8(34),
    )
    if quoted == FRAMES_FULL:
        return quoted
    if quoted >= 0:
        path[0, 0] = quoted
        path[0, 1] = register_after
        path[0, 2] = frame_after
        status = walk_tails(
            tables,
            stack,
            slices,
            path,
            minimum - register,
            room if maximum >= 0 else np.int64(1 << 30),
            mask,
        )
        if status < 0:
            return status
    if base == state:
        return np.int64(0)
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    return correct_row(tables, stack, trees, path, mask)


@njit(**OPTIONS)
def correct_row(tables, stack, trees, path, mask):  # type: ignore[no-untyped-def]
    """Turn the row of the base state into that of path[0]: walk only as long as the text read might still differ.

    A subtree is left as it is as soon as the walk reaches a plain loop state: from there on both behave alike.
    Returns 0 or FRAMES_FULL.
    """
    states, loops = tables[0], tables[5]
    tree, same = trees
    i = np.int64(0)
    last = tree.shape[0]
    while i < last:
        depth = tree[i, DEPTH]
        state, register, frame = step(
            tables,
            stack,
            path[depth, 0],
            path[depth, 1],
            path[depth, 2],
            tree[i, BYTE],
        )
        if state == FRAMES_FULL:
            return state
        end = np.int64(tree[i, END])
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
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        _allow(mask, same, tree[i, TOKEN])
        i += 1
    return np.int64(0)


@njit(inline="always", **OPTIONS)
def _find(found, seen, many, state, register, frame):  # type: ignore[no-untyped-def]
    """Add a configuration to the `many` in `found` unless it is there; how many there are now, or FOUND_FULL."""
    slot = bucket_of(seen, state, register, frame)
    while seen[slot] >= 0:
        other = seen[slot]
        if found[other, 0] == state and found[other, 1] == register and found[other, 2] == frame:
            return many
        slot = (slot + 1) & (seen.shape[0] - 1)
    if many >= found.shape[0]:
        return np.int64(FOUND_FULL)
    found[many, 0] = state
    found[many, 1] = register
    found[many, 2] = frame
    seen[slot] = many
    return many + 1


@njit(**OPTIONS)
def find_targets(tables, stack, tree, path, until_free, found, seen, many):  # type: ignore[no-untyped-def]
    """Find where the tokens of a prefix tree lead from path[0]; `found`, `seen` and the result are as in `successors`.

    With `until_free`, what follows the arrival in a plain loop state is left out.
    """
    states, loops = tables[0], tables[5]
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
            many = _find(found, seen, many, state, register, frame)
            if many < 0:
                return many
        loop = states[state, LOOP]
        if until_free and loop > 0 and loops[loop, LOOP_BASE] == DEAD and frame == path[0, 2]:
            i = np.int64(tree[i, END])
            continue
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
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
        return find_targets(tables, stack, tree, path, False, found, seen, np.int64(0))
    many = find_targets(tables, stack, condensed, path, False, found, seen, np.int64(0))
    base = np.int64(loops[loop, LOOP_BASE])
    if many < 0 or base < 0:
        return many
    many = find_targets(tables, stack, tree, path, True, found, seen, many)
    if many < 0:
        return many
    base, register, frame = arrive(tables, stack, base, register, frame)
    if base < 0:
        return base if base == FRAMES_FULL else many
    path[0, 0] = base
    path[0, 1] = register
    path[0, 2] = frame
    return find_targets(tables, stack, condensed, path, False, found, seen, many)
