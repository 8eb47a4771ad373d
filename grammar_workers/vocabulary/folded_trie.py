"""Bytes that a part of a machine does not tell apart, and the vocabulary folded by them.

Inside of a pattern such as `[a-z0-9-]+` tens of thousands of tokens are read, but few kinds of them: to the machine
"thing" and "these" are the same five letters. So the prefix tree of the vocabulary is folded: tokens whose bytes are
alike one by one share a path. Walking it takes hundreds of steps where the tree takes hundreds of thousands, and
patterns with the same classes of bytes share it. Tokens with a quote lead out of a string, and are left to a tree of
their own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.matching.kernels.step import (
    CALL,
    EXIT,
    GOTO,
    LIT,
    MOVE,
    OP,
    OPTIONS,
    OTHERWISE,
    RETURN,
    ROW,
    SITE_BASE,
    TARGET,
)
from grammar_workers.vocabulary.trie import BYTE, DEPTH, END, TOKEN

QUOTE = 34
_UNREAD = 255
"""The class of bytes that are never read, and of the quote."""
_MOST_CLASSES = 64
_MOST_STATES = 4096


@dataclasses.dataclass(frozen=True)
class FoldedTree:
    """The tokens without quotes, folded.

    `tree` int32 [nodes, 3] in preorder: BYTE (one of the alike bytes that lead to a node), DEPTH and END as in
    `prefix_tree`; `spans` int64 [nodes + 1] into `tokens` int32: the tokens that end in a node.
    """

    tree: NDArray[np.int32]
    spans: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @property
    def tables(self) -> tuple[NDArray[Any], ...]:
        """The arrays as the plain tuple that kernels take."""
        return self.tree, self.spans, self.tokens

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tables)


def fold(tree: NDArray[np.int32], same: NDArray[np.int32], classes: bytes) -> FoldedTree:
    """The prefix tree of a vocabulary (`same`: `Vocabulary.same_bytes`) folded by `classes`, the class of each byte."""
    return FoldedTree(*_fold(tree, same, np.frombuffer(classes, np.uint8)))


def classes_of(tables: tuple[NDArray[np.int32], ...], state: int) -> tuple[bytes | None, NDArray[np.int64]]:
    """The class of each byte as seen from `state` until a quote; and all states to which the same classes apply.

    None where reading on may leave the rule that the state belongs to, or where too many bytes are told apart.
    """
    reached = _region(tables, _site_ends(tables), np.int64(state))
    if not len(reached):
        return None, np.array([state])
    columns = tables[0][reached >> 1]
    region = reached[reached & 1 == 0] >> 1
    rows = np.unique(columns[:, ROW])
    literals = np.unique(columns[:, LIT])
    literals = literals[literals >= 0]
    seen = tables[1][rows[rows >= 0]]
    read = (seen >= 0).any(axis=0)
    read[literals] = True
    read[QUOTE] = False
    told_apart = np.zeros(256, np.int32)
    told_apart[literals] = literals + 1
    contents = np.concatenate([seen, told_apart[None]]).T.copy()
    numbers: dict[bytes, int] = {}
    classes = bytearray([_UNREAD]) * 256
    for byte in np.flatnonzero(read).tolist():
        classes[byte] = numbers.setdefault(contents[byte].tobytes(), len(numbers))
        if len(numbers) > _MOST_CLASSES:
            return None, region
    return bytes(classes), region


def _site_ends(tables: tuple[NDArray[np.int32], ...]) -> NDArray[np.int32]:
    """Per op: where the return site of a call ends. Sites lie one after the other."""
    ops, returns = tables[2], tables[4]
    bases = np.unique(ops[ops[:, MOVE] == CALL, SITE_BASE])
    return np.append(bases, len(returns))[np.searchsorted(bases, ops[:, SITE_BASE], side="right")].astype(np.int32)


@njit(**OPTIONS)
def _region(tables, site_ends, start):  # type: ignore[no-untyped-def]
    """The states in which bytes may be read after `start` and before a quote, itself included.

    Each times two, plus one in a rule that is called on the way (that rule may have other callers). Empty where the
    rule that it belongs to may be left, or with too many states.
    """
    states, table, ops, _, returns, _ = tables
    queue = np.empty(_MOST_STATES, np.int64)
    # Bit 0: seen in the rule of `start`, bit 1: seen in one that it calls.
    seen = np.zeros(states.shape[0], np.uint8)
    targets = np.empty(260, np.int64)
    queue[0] = start << 1
    many = 1
    done = 0
    while done < many:
        state, called = queue[done] >> 1, queue[done] & 1
        op = states[state, OP] if done else np.int32(0)
        done += 1
        found = 0
        move = ops[op, MOVE] if op else -1
        if move == RETURN:
            if not called:
                return queue[:0]
            continue
        if move == CALL:
            if site_ends[op] - ops[op, SITE_BASE] > 256:
                return queue[:0]
            for place in range(ops[op, SITE_BASE], site_ends[op]):
                site = np.int64(returns[place])
                if site >= 0:
                    targets[found] = site << 1 | called
                    found += 1
            targets[found] = np.int64(ops[op, TARGET]) << 1 | 1
            found += 1
        elif move == GOTO:
            targets[0] = np.int64(ops[op, TARGET]) << 1 | called
            found = 1
        else:
            if states[state, EXIT] >= 0:
                return queue[:0]
            if move == OTHERWISE:
                targets[0] = np.int64(ops[op, TARGET]) << 1 | called
                found = 1
            if states[state, LIT] >= 0 and states[state, LIT] != QUOTE:
                targets[found] = (state + 1) << 1 | called
                found += 1
            row = states[state, ROW]
            last = np.int64(-1)
            for byte in range(256):
                target = np.int64(table[row, byte]) if row >= 0 and byte != QUOTE else np.int64(-1)
                if target >= 0 and target != last:
                    targets[found] = target << 1 | called
                    found += 1
                    last = target
        for i in range(found):
            target = targets[i]
            bit = np.uint8(1) << np.uint8(target & 1)
            if seen[target >> 1] & bit:
                continue
            if many == _MOST_STATES:
                return queue[:0]
            seen[target >> 1] |= bit
            queue[many] = target
            many += 1
    return queue[:many].copy()


@njit(**OPTIONS)
def _fold(tree, same, classes):  # type: ignore[no-untyped-def]
    deepest = 0
    for depth in tree[:, DEPTH]:
        deepest = max(deepest, depth)
    # Nodes as they are met; node 0 is the root. They are numbered anew below.
    most = tree.shape[0] + 1
    met = np.zeros(deepest + 2, np.int32)
    bytes_read = np.zeros(most, np.uint8)
    children = np.full(most, -1, np.int32)
    siblings = np.full(most, -1, np.int32)
    place = np.full(same.shape[0], -1, np.int32)
    many = np.int32(1)
    i = np.int64(0)
    while i < tree.shape[0]:
        byte = tree[i, BYTE]
        if classes[byte] == _UNREAD:
            i = np.int64(tree[i, END])
            continue
        parent = met[tree[i, DEPTH]]
        node = children[parent]
        while node >= 0 and classes[bytes_read[node]] != classes[byte]:
            node = siblings[node]
        if node < 0:
            node = many
            many += np.int32(1)
            bytes_read[node] = byte
            siblings[node] = children[parent]
            children[parent] = node
        met[tree[i, DEPTH] + 1] = node
        token = tree[i, TOKEN]
        while token >= 0:
            place[token] = node
            token = same[token]
        i += 1
    folded = np.empty((many - 1, 3), np.int32)
    number = np.zeros(many, np.int32)
    path = np.empty(deepest + 2, np.int32)
    depth = 0
    path[0] = children[0]
    done = np.int32(0)
    while depth >= 0:
        node = path[depth]
        if node < 0:
            depth -= 1
            if depth >= 0:
                folded[number[path[depth]], END] = done
                path[depth] = siblings[path[depth]]
            continue
        number[node] = done
        folded[done, BYTE] = bytes_read[node]
        folded[done, DEPTH] = depth
        done += np.int32(1)
        depth += 1
        path[depth] = children[node]
    spans = np.zeros(many, np.int64)
    for token in range(place.shape[0]):
        if place[token] >= 0:
            spans[number[place[token]] + 1] += 1
    for node in range(many - 1):
        spans[node + 1] += spans[node]
    tokens = np.empty(spans[many - 1], np.int32)
    filled = spans.copy()
    for token in range(place.shape[0]):
        if place[token] >= 0:
            node = number[place[token]]
            tokens[filled[node]] = token
            filled[node] += 1
    return folded, spans, tokens
