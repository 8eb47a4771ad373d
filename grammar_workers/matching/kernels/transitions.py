"""Kernels for the export of automata to a PyTorch device (see `matching.export`).

They compute the next configurations after tokens, and classes of tokens that lead to the same next states.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit

from grammar_workers.matching.kernels.arrays import arrays_of
from grammar_workers.matching.kernels.step import FRAMES_FULL, bucket_of
from grammar_workers.matching.kernels.trie_walks import put, step_from
from grammar_workers.numba_options import BORROWS, OPTIONS, called_with
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

# Result of a kernel: `found` has no room for another entry.
FOUND_FULL = -3


@njit(inline="always", **BORROWS)
def place_of(found, seen, many, first, second, third):  # type: ignore[no-untyped-def]
    """Return the index of a triple of integers in a table of distinct triples. A new triple is added to the table.

    Args:
        found: Distinct triples, int64 [capacity, 3]. A new triple is written to row `many`.
        seen: Hash table of the indices in `found`, int32 [power of two, more than capacity]. The caller fills it with
            -1 before the first call. The index of a new triple is added.
        many: Number of triples in `found`. The caller adds 1 after a new triple.
        first: First integer.
        second: Second integer.
        third: Third integer.

    Returns:
        An index into `found`. It is `many` if the triple is new. FOUND_FULL (-3) if it is new and `found` is full.
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


@called_with(int64[:, ::1], int64, int64, int64, int64[:, ::1], int32[::1], int32[::1])
@njit(**OPTIONS)
def pushdown_targets(entries, state, counter, frame, found, seen, places):  # type: ignore[no-untyped-def]
    """Compute the configurations after all tokens that a configuration allows, by a walk of the whole prefix tree.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2] (see `arrays`).
        state: State before the token, an index into the automaton's states.
        counter: Counter before the token.
        frame: Frame (top of the return stack) before the token, an index into the frame table.
        found: Receives the distinct configurations (state, counter, frame), int64 [capacity, 3].
        seen: Hash table of `found`, int32 [power of two, more than capacity]. The caller fills it with -1.
        places: Receives the index in `found` for each allowed token, int32 [V]. The caller fills it with -1; disallowed
            tokens keep -1.

    Returns:
        The number of configurations in `found`. FRAMES_FULL (-2) if the frame table (all stack frames) is full,
        FOUND_FULL (-3) if `found` is full.
    """
    arrays = arrays_of(entries)
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
    """Split classes of tokens so that all tokens of one class lead to the same next state.

    Args:
        class_of: Class of each token, int32 [V]. Changed in place.
        targets: Next state after each token, int32 [V]; -1 for disallowed tokens.
        many: Number of classes before the split.
        origin: Receives the class from which each new class was split, int32 [capacity].
        pairs: Scratch space, int64 [capacity, 3].
        seen: Scratch space (hash table of `pairs`), int32 [power of two, more than capacity]. The caller fills it with
            -1.

    Returns:
        The number of classes after the split. FOUND_FULL (-3) if it would exceed the capacity; `class_of` is then
        partly changed.
    """
    met = np.zeros(many, np.bool_)
    first = np.empty(many, np.int64)
    fresh = np.int64(0)
    for token in range(class_of.shape[0]):
        before, target = np.int64(class_of[token]), np.int64(targets[token])
        if not met[before]:
            met[before], first[before] = True, target
        elif target != first[before]:  # nearly all tokens of a class have the target of its first token
            place = place_of(pairs, seen, fresh, before, target, np.int64(0))
            if place < 0 or many + place >= pairs.shape[0]:
                return np.int64(FOUND_FULL)
            if place == fresh:
                origin[fresh] = before
                fresh += 1
            class_of[token] = many + place
    return many + fresh
