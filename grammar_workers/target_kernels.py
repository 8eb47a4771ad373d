"""Compiled loops that tell where the tokens of a state lead: all of them, or each by itself (see `device_tables`).

`tables`, `stack`, `trees`, `slices` and `path` are as in `row_kernels`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.kernels import (
    ACTION,
    DEAD,
    FRAMES_FULL,
    INCREMENT,
    LIT,
    LOOP,
    LOOP_BASE,
    OP,
    OPTIONS,
    PARENT,
    ROW,
    SAVED,
    SILENT_MOVES,
    SITE,
    TOLERATES_ANY,
    arrive,
    bucket_of,
    leave,
    may_end,
    step,
)
from grammar_workers.prefix_tree import BYTE, DEPTH, END, TOKEN
from grammar_workers.row_classes import BOUNDS, find_class

FOUND_FULL = -3


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
    return _tell_apart(tables, stack, known, found, many)


@njit(**OPTIONS)
def beside(tables, known, assigned, state, register, row_class):  # type: ignore[no-untyped-def]
    """The least register of `assigned` (sorted) above the bounds of the class that (state, register) belongs to, or -1.

    -1 also for a state that counts what it reads: its register gets to other values than assigned ones.
    """
    states, table, ops = tables[0], tables[1], tables[2]
    high = max(known[0][row_class, BOUNDS + 1], register)
    first = np.int64(0)
    while first < assigned.shape[0] and assigned[first] <= high:
        first += 1
    if first == assigned.shape[0]:
        return np.int64(-1)
    row = states[state, ROW]
    for byte in range(256):
        target = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
        if states[state, LIT] == byte:
            target = np.int64(state + 1)
        if target >= 0 and ops[states[target, OP], ACTION] == INCREMENT:
            return np.int64(-1)
    return np.int64(assigned[first])


@njit(**OPTIONS)
def after_return(tables, stack, known, frame, end, found):  # type: ignore[no-untyped-def]
    """Find where callers go on when the rule that was called with `frame` returns: one configuration for each label.

    `end` is where the labels of the frame's site end in the table of returns. `found` and the result are as in
    `after_ascii`, `found` with room for all labels.
    """
    frames, returns = stack[0], tables[4]
    many = np.int64(0)
    for place in range(frames[frame, SITE], end):
        if returns[place] < 0:
            continue
        state, register, below = arrive(
            tables, stack, np.int64(returns[place]), frames[frame, SAVED], frames[frame, PARENT]
        )
        if state < 0:
            if state == FRAMES_FULL:
                return state
            continue
        found[many, 0] = state
        found[many, 1] = register
        found[many, 2] = below
        many += 1
    return _tell_apart(tables, stack, known, found, many)


@njit(**OPTIONS)
def _tell_apart(tables, stack, known, found, many):  # type: ignore[no-untyped-def]
    """Fill the last two columns of `found`, see `after_ascii`."""
    for i in range(many):
        found[i, 3] = may_end(tables, stack, found[i, 0], found[i, 1], found[i, 2])
        if found[i, 3] == FRAMES_FULL:
            return np.int64(FRAMES_FULL)
        found[i, 4] = find_class(known, stack, found[i, 0], found[i, 1], found[i, 2])
    return many


@njit(**OPTIONS)
def machine_targets(tables, stack, trees, path, state, register, frame, found, seen, places):  # type: ignore[no-untyped-def]
    """Walk the whole prefix tree from (state, register, frame).

    `found` (int64 [capacity, 3]) receives the distinct configurations that tokens lead to, `places` (int32 [V], filled
    with -1) for each allowed token the place of its own among them. Other arguments are as in `row_kernels`. Returns
    how many were found, FRAMES_FULL or FOUND_FULL.
    """
    tree, same = trees[0], trees[1]
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    many = np.int64(0)
    i = np.int64(0)
    while i < tree.shape[0]:
        depth = tree[i, DEPTH]
        state, register, frame = step(tables, stack, path[depth, 0], path[depth, 1], path[depth, 2], tree[i, BYTE])
        if state == FRAMES_FULL:
            return state
        if state < 0:
            i = np.int64(tree[i, END])
            continue
        token = tree[i, TOKEN]
        if token >= 0:
            place = place_of(found, seen, many, state, register, frame)
            if place < 0:
                return place
            many = max(many, place + 1)
            while token >= 0:
                places[token] = place
                token = same[token]
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        i += 1
    return many


@njit(**OPTIONS)
def refine(class_of, targets, many, origin, pairs, seen):  # type: ignore[no-untyped-def]
    """Split classes of tokens so that all tokens of one class have the same target.

    `class_of` (int32 [V], changed in place) holds numbers below `many`; `origin` (int32 [capacity]) receives for each
    new class the one it comes from, `pairs` (int64 [capacity, 3]) and `seen` are scratch as `found` and `seen` above.
    Returns how many classes there are, or FOUND_FULL.
    """
    kept = np.full(many, -1, np.int64)
    known = np.int64(0)
    fresh = np.int64(0)
    numbers = np.empty(pairs.shape[0], np.int64)
    for token in range(class_of.shape[0]):
        before = np.int64(class_of[token])
        place = place_of(pairs, seen, known, before, np.int64(targets[token]), np.int64(0))
        if place < 0:
            return place
        if place == known:
            known += 1
            if kept[before] < 0:
                kept[before] = place
                numbers[place] = before
            else:
                origin[fresh] = before
                numbers[place] = many + fresh
                fresh += 1
        class_of[token] = numbers[place]
    return many + fresh
