"""Which bytes a part of a pushdown automaton does not tell apart, such as the letters in `[a-z0-9-]+`.

Tokens whose bytes are alike one by one are then alike, too (`vocabulary.folded_trie`).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS
from grammar_workers.pushdown.instructions import (
    CALL,
    GOTO,
    INSTRUCTION_MOVE,
    INSTRUCTION_SITE,
    INSTRUCTION_TARGET,
    OTHERWISE,
    RETURN,
    STATE_EXIT,
    STATE_INSTRUCTION,
    STATE_LITERAL,
    STATE_ROW,
    Tables,
)
from grammar_workers.pushdown.json_text import QUOTE

UNREAD = 255
"""The class of bytes that are never read, and of the quote."""
_MOST_CLASSES = 64
_MOST_STATES = 4096


def classes_of(tables: Tables, state: int) -> tuple[bytes | None, NDArray[np.int64]]:
    """The class of each byte as seen from `state` until a quote; and all states to which the same classes apply.

    None where reading on may leave the rule that the state belongs to, or where too many bytes are told apart.
    """
    reached = _region(tables, _site_ends(tables), np.int64(state))
    if not len(reached):
        return None, np.array([state])
    columns = tables.states[reached >> 1]
    region = reached[reached & 1 == 0] >> 1
    rows = np.unique(columns[:, STATE_ROW])
    literals = np.unique(columns[:, STATE_LITERAL])
    literals = literals[literals >= 0]
    seen = tables.table[rows[rows >= 0]]
    read = (seen >= 0).any(axis=0)
    read[literals] = True
    read[QUOTE] = False
    told_apart = np.zeros(256, np.int32)
    told_apart[literals] = literals + 1
    contents = np.concatenate([seen, told_apart[None]]).T.copy()
    numbers: dict[bytes, int] = {}
    classes = bytearray([UNREAD]) * 256
    for byte in np.flatnonzero(read).tolist():
        classes[byte] = numbers.setdefault(contents[byte].tobytes(), len(numbers))
        if len(numbers) > _MOST_CLASSES:
            return None, region
    return bytes(classes), region


def _site_ends(tables: Tables) -> NDArray[np.int32]:
    """Per instruction: where the return site of a call ends. Sites lie one after the other."""
    instructions, returns = tables.instructions, tables.returns
    bases = np.unique(instructions[instructions[:, INSTRUCTION_MOVE] == CALL, INSTRUCTION_SITE])
    following = np.searchsorted(bases, instructions[:, INSTRUCTION_SITE], side="right")
    return np.append(bases, len(returns))[following].astype(np.int32)


@njit(inline="always", **OPTIONS)
def _add(queue, seen, many, state, called):  # type: ignore[no-untyped-def]
    """How many are queued once `state` is, which may be -1 or queued already; one more than _MOST_STATES at most."""
    # Bit 0: seen in the rule of the first state, bit 1: seen in one that it calls.
    bit = np.uint8(1) << np.uint8(called)
    if state >= 0 and not seen[state] & bit and many <= _MOST_STATES:
        seen[state] |= bit
        queue[many] = np.int64(state) << 1 | called
        many += 1
    return many


@njit(**OPTIONS)
def _region(tables, site_ends, start):  # type: ignore[no-untyped-def]
    """The states in which bytes may be read after `start` and before a quote, itself included.

    Each times two, plus one in a rule that is called on the way (that rule may have other callers). Empty where the
    rule that it belongs to may be left, or with too many states.
    """
    states, table, instructions, returns = tables.states, tables.table, tables.instructions, tables.returns
    queue = np.empty(_MOST_STATES + 1, np.int64)
    seen = np.zeros(states.shape[0], np.uint8)
    # Bytes may lead back to `start`, whose instruction must be followed then.
    queue[0] = start << 1
    many = 1
    done = 0
    while done < many:
        if many > _MOST_STATES:
            return queue[:0]
        state, called = queue[done] >> 1, queue[done] & 1
        number = states[state, STATE_INSTRUCTION] if done else np.int32(0)
        done += 1
        move = instructions[number, INSTRUCTION_MOVE] if number else -1
        target = instructions[number, INSTRUCTION_TARGET]
        if move == RETURN:
            if not called:
                return queue[:0]
            continue
        if move == CALL:
            for place in range(instructions[number, INSTRUCTION_SITE], site_ends[number]):
                many = _add(queue, seen, many, returns[place], called)
            many = _add(queue, seen, many, target, np.int64(1))
            continue
        if move in (GOTO, OTHERWISE):
            many = _add(queue, seen, many, target, called)
        if move == GOTO:
            continue
        if states[state, STATE_EXIT] >= 0:
            return queue[:0]
        if states[state, STATE_LITERAL] >= 0 and states[state, STATE_LITERAL] != QUOTE:
            many = _add(queue, seen, many, state + 1, called)
        row = states[state, STATE_ROW]
        for byte in range(256 if row >= 0 else 0):
            if byte != QUOTE:
                many = _add(queue, seen, many, table[row, byte], called)
    return queue[:many].copy()
