"""Which bytes a part of a pushdown automaton does not tell apart, such as the letters in `[a-z0-9-]+`.

Tokens whose bytes are alike one by one are then alike, too (`vocabulary.folded_trie`).
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit
from numpy.typing import NDArray

from grammar_workers.numba_options import INNER, OPTIONS, called_with
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
    TABLES,
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

    `site_ends` is what `site_ends_of` returns. None where too many bytes are told apart, or where reading on may leave
    the rule that the state belongs to; then there are no states either.
    """
    classes, region = _classes_of(tables, site_ends, np.int64(state))
    return (classes.tobytes() if len(classes) else None), region


@called_with(TABLES, int32[::1], int64)
@njit(**OPTIONS)
def _classes_of(tables, site_ends, state):  # type: ignore[no-untyped-def]
    """The same, without classes for None."""
    none = np.zeros(0, np.uint8)
    reached = _region(tables, site_ends, state)
    if reached.shape[0] == 0:
        return none, reached
    literals = np.zeros(256, np.bool_)
    rows = np.empty(reached.shape[0], np.int64)
    region = np.empty(reached.shape[0], np.int64)
    met = np.zeros(tables.table.shape[0], np.bool_)
    many_rows = 0
    own = 0
    for place in reached:
        here = place >> 1
        if place & 1 == 0:
            region[own] = here
            own += 1
        row = tables.states[here, STATE_ROW]
        if row >= 0 and not met[row]:
            met[row] = True
            rows[many_rows] = row
            many_rows += 1
        if tables.states[here, STATE_LITERAL] >= 0:
            literals[tables.states[here, STATE_LITERAL]] = True
    # Each literal is a class of its own; a stored automaton may have any.
    if literals.sum() > _MOST_CLASSES + len(LEADS_OUT):
        return none, region[:own].copy()
    told_apart, read = _tell_apart(tables.table, rows[:many_rows], np.flatnonzero(literals))
    numbers = np.full(257, -1, np.int32)
    classes = np.full(256, UNREAD, np.uint8)
    many = 0
    for byte in range(256):
        if read[byte]:
            if numbers[told_apart[byte]] < 0:
                numbers[told_apart[byte]] = many
                many += 1
            classes[byte] = numbers[told_apart[byte]]
    return (classes if many <= _MOST_CLASSES else none), region[:own].copy()


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
    """Per place in `returns`: where the return site that begins there ends. Sites lie one after the other."""
    return _site_ends_of(tables)


@called_with(TABLES)
@njit(**OPTIONS)
def _site_ends_of(tables):  # type: ignore[no-untyped-def]
    instructions, returns = tables.instructions, tables.returns
    begins = np.zeros(returns.shape[0], np.bool_)
    for number in range(instructions.shape[0]):
        if instructions[number, INSTRUCTION_MOVE] == CALL:
            begins[instructions[number, INSTRUCTION_SITE]] = True
    ends = np.empty(returns.shape[0], np.int32)
    end = returns.shape[0]
    for place in range(returns.shape[0] - 1, -1, -1):
        ends[place] = end
        if begins[place]:
            end = place
    return ends


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


@njit(**OPTIONS, **INNER)
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
            site = instructions[number, INSTRUCTION_SITE]
            for place in range(site, site_ends[site]):
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
