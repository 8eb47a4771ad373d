"""Compiled loops that tell where *each* token of a state leads, for the tables of `device_tables`."""

from __future__ import annotations

import numpy as np
from numba import njit

from grammar_workers.kernels import FRAMES_FULL, OPTIONS, step
from grammar_workers.prefix_tree import BYTE, DEPTH, END, TOKEN
from grammar_workers.row_kernels import place_of


@njit(**OPTIONS)
def machine_targets(tables, stack, tree, same, path, found, seen, places):  # type: ignore[no-untyped-def]
    """Walk the whole prefix tree from the configuration path[0].

    `found` (int64 [capacity, 3]) receives the distinct configurations that tokens lead to, `places` (int32 [V], filled
    with -1) for each allowed token the place of its own among them. Other arguments are as in `row_kernels`. Returns
    how many were found, FRAMES_FULL or FOUND_FULL.
    """
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
