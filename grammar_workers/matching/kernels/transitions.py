"""Compiled loops that tell where the tokens of a state lead: all of them, or each by itself (see `matching.export`)."""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit

from grammar_workers.matching.kernels.step import FRAMES_FULL, bucket_of
from grammar_workers.matching.kernels.trie_walks import put, step_from
from grammar_workers.numba_options import BORROWS, OPTIONS, called_with
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

FOUND_FULL = -3
"""There is no room for another entry."""


@njit(inline="always", **BORROWS)
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


@njit(inline="always", **BORROWS)
def pushdown_targets(arrays, state, counter, frame, found, seen, places):  # type: ignore[no-untyped-def]
    """Walk the whole prefix tree from (state, counter, frame). `arrays` are those of a recognizer (`arrays.Arrays`).

    `found` (int64 [capacity, 3]) receives the distinct configurations that tokens lead to, `places` (int32 [V], filled
    with -1) for each allowed token the place of its own among them. Returns how many were found, FRAMES_FULL or
    FOUND_FULL.
    """
    tables, stack, path = arrays.tables, arrays.stack, arrays.path
    tree, same = arrays.trees.tree, arrays.trees.same_bytes
    put(path, 0, state, counter, frame)
    many = np.int64(0)
    i = np.int64(0)
    while i < tree.shape[0]:
        depth = tree[i, TRIE_DEPTH]
        state, counter, frame = step_from(tables, stack, path, depth, tree[i, TRIE_BYTE])
        if state == FRAMES_FULL:
            return state
        if state < 0:
            i = np.int64(tree[i, TRIE_END])
            continue
        token = tree[i, TRIE_TOKEN]
        if token >= 0:
            place = place_of(found, seen, many, state, counter, frame)
            if place < 0:
                return place
            many = max(many, place + 1)
            while token >= 0:
                places[token] = place
                token = same[token]
        put(path, depth + 1, state, counter, frame)
        i += 1
    return many


@called_with(int32[::1], int32[::1], int64, int32[::1], int64[:, ::1], int32[::1])
@njit(**OPTIONS)
def refine(class_of, targets, many, origin, pairs, seen):  # type: ignore[no-untyped-def]
    """Split classes of tokens so that all tokens of one class have the same target.

    `class_of` (int32 [V], changed in place) holds numbers below `many`; `origin` (int32 [capacity]) receives for each
    new class the one it comes from, `pairs` (int64 [capacity, 3]) and `seen` are scratch as `found` and `seen` above.
    Returns how many classes there are, or FOUND_FULL.
    """
    met = np.zeros(many, np.bool_)
    first = np.empty(many, np.int64)
    fresh = np.int64(0)
    for token in range(class_of.shape[0]):
        before, target = np.int64(class_of[token]), np.int64(targets[token])
        if not met[before]:
            met[before], first[before] = True, target
        elif target != first[before]:  # nearly all tokens of a class go where its first one goes
            place = place_of(pairs, seen, fresh, before, target, np.int64(0))
            if place < 0 or many + place >= pairs.shape[0]:
                return np.int64(FOUND_FULL)
            if place == fresh:
                origin[fresh] = before
                fresh += 1
            class_of[token] = many + place
    return many + fresh
