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


@njit(**OPTIONS)
def _region(tables, site_ends, start):  # type: ignore[no-untyped-def]
    """The states in which bytes may be read after `start` and before a quote, itself included.

    Each times two, plus one in a rule that is called on the way (that rule may have other callers). Empty where the
    rule that it belongs to may be left, or with too many states.
    """
    states, table, instructions, returns = tables.states, tables.table, tables.instructions, tables.returns
    queue = np.empty(_MOST_STATES, np.int64)
    # Bit 0: seen in the rule of `start`, bit 1: seen in one that it calls.
    seen = np.zeros(states.shape[0], np.uint8)
    targets = np.empty(260, np.int64)
    queue[0] = start << 1
    many = 1
    done = 0
    while done < many:
        state, called = queue[done] >> 1, queue[done] & 1
        number = states[state, STATE_INSTRUCTION] if done else np.int32(0)
        done += 1
        found = 0
        move = instructions[number, INSTRUCTION_MOVE] if number else -1
        if move == RETURN:
            if not called:
                return queue[:0]
            continue
        if move == CALL:
            if site_ends[number] - instructions[number, INSTRUCTION_SITE] > 256:
                return queue[:0]
            for place in range(instructions[number, INSTRUCTION_SITE], site_ends[number]):
                site = np.int64(returns[place])
                if site >= 0:
                    targets[found] = site << 1 | called
                    found += 1
            targets[found] = np.int64(instructions[number, INSTRUCTION_TARGET]) << 1 | 1
            found += 1
        elif move == GOTO:
            targets[0] = np.int64(instructions[number, INSTRUCTION_TARGET]) << 1 | called
            found = 1
        else:
            if states[state, STATE_EXIT] >= 0:
                return queue[:0]
            if move == OTHERWISE:
                targets[0] = np.int64(instructions[number, INSTRUCTION_TARGET]) << 1 | called
                found = 1
            if states[state, STATE_LITERAL] >= 0 and states[state, STATE_LITERAL] != QUOTE:
                targets[found] = (state + 1) << 1 | called
                found += 1
            row = states[state, STATE_ROW]
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
