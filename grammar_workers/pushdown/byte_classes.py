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
from grammar_workers.pushdown.json_text import BACKSLASH, QUOTE

UNREAD = 255
"""The class of bytes that are never read, and of `LEADS_OUT`."""
LEADS_OUT = (QUOTE, BACKSLASH)
"""Bytes that lead out of the plain characters of a string. What follows a backslash tells letters apart that are alike
everywhere else, so tokens with one are not folded."""
_MOST_CLASSES = 64
_MOST_STATES = 4096


def classes_of(tables: Tables, site_ends: NDArray[np.int32], state: int) -> tuple[bytes | None, NDArray[np.int64]]:
    """The class of each byte as seen from `state` until one of `LEADS_OUT`; and all states to which they apply.

    `site_ends` is what `site_ends_of` returns. None where reading on may leave the rule that the state belongs to, or
    where too many bytes are told apart.
    """
    reached = _region(tables, site_ends, np.int64(state))
    if not len(reached):
        return None, np.array([state])
    columns = tables.states[reached >> 1]
    region = reached[reached & 1 == 0] >> 1
    rows = np.unique(columns[:, STATE_ROW])
    literals = np.unique(columns[:, STATE_LITERAL])
    literals = literals[literals >= 0]
    # Each is a class of its own; a stored automaton may have any.
    if len(literals) > _MOST_CLASSES + len(LEADS_OUT):
        return None, region
    told_apart, read = _tell_apart(tables.table, rows[rows >= 0], literals)
    numbers: dict[int, int] = {}
    classes = bytearray([UNREAD]) * 256
    for byte in np.flatnonzero(read).tolist():
        classes[byte] = numbers.setdefault(int(told_apart[byte]), len(numbers))
    return (bytes(classes) if len(numbers) <= _MOST_CLASSES else None), region


@njit(**OPTIONS)
def _tell_apart(table, rows, literals):  # type: ignore[no-untyped-def]
    """The class of each byte that some of `rows` or `literals` reads, int32 [256]; and which those are, bool [256].

    Few rows tell apart what no row before did, so each is compared with the first byte of each class.
    """
    classes = np.zeros(256, np.int32)
    read = np.zeros(256, np.bool_)
    first = np.zeros(257, np.int32)
    origin = np.zeros(257, np.int32)
    many = 1
    for byte in literals:
        read[byte] = True
        classes[byte] = many
        first[many] = byte
        many += 1
    while classes[first[0]] != 0 or first[0] in LEADS_OUT:
        first[0] += 1
    for row in rows:
        before = many
        for byte in range(256):
            target = table[row, byte]
            read[byte] |= target >= 0
            known = classes[byte]
            if target == table[row, first[known]] or byte in LEADS_OUT:
                continue
            part = before
            while part < many and (origin[part] != known or table[row, first[part]] != target):
                part += 1
            classes[byte] = part
            if part == many:
                origin[part] = known
                first[part] = byte
                many += 1
    for byte in LEADS_OUT:
        read[byte] = False
    return classes, read


def site_ends_of(tables: Tables) -> NDArray[np.int32]:
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
    """The states in which bytes may be read after `start` and before one of `LEADS_OUT`, itself included.

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
        if states[state, STATE_LITERAL] >= 0 and states[state, STATE_LITERAL] not in LEADS_OUT:
            many = _add(queue, seen, many, state + 1, called)
        row = states[state, STATE_ROW]
        added = np.int32(-1)
        for byte in range(256 if row >= 0 else 0):
            if table[row, byte] != added and byte not in LEADS_OUT:
                added = table[row, byte]
                many = _add(queue, seen, many, added, called)
    return queue[:many].copy()
