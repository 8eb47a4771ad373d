"""Equivalence classes of bytes in a part of a pushdown automaton. In `[a-z0-9-]+`, all letters are one class.

From every state of the part, all bytes of a class lead to one next state. If two tokens have the same sequence of
classes, the same states of the part allow them (see `vocabulary.folded_trie`).
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit
from numpy.typing import NDArray

from grammar_workers.numba_options import INNER, OPTIONS, called_with
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.instructions import TABLES, Tables
from grammar_workers.pushdown.json_text import BACKSLASH, QUOTE

# Class of the bytes that no state reads, and of `LEADS_OUT`.
UNREAD = 255
# Bytes that lead out of the plain characters of a string. Tokens with one of them are not folded, because the byte
# after a backslash distinguishes letters that are equivalent elsewhere.
LEADS_OUT = (QUOTE, BACKSLASH)
_MOST_CLASSES = 64
_MOST_STATES = 4096


def classes_of(tables: Tables, site_ends: NDArray[np.int32], state: int) -> tuple[bytes | None, NDArray[np.int64]]:
    """Compute the equivalence classes of bytes in the states that are reachable from `state` inside a JSON string.

    The reachable states are those after any bytes except quote and backslash, which may leave the string. From every
    reachable state, all bytes of a class lead to one next state.

    Args:
        tables: Tables of the automaton.
        site_ends: The result of `site_ends_of` for these tables, int32 [r].
        state: State where the search for reachable states begins.

    Returns:
        A pair (classes, states):

        - `classes`: the class of each byte, 256 bytes. It is 255 (UNREAD) for quote, backslash, and bytes that no state
          reads. None if there are more than 64 classes.
        - `states`: the reachable states that belong to the rule of `state`, int64.

        If a reachable state may return from the rule, or if more than 4,096 states are reachable, the pair is (None,
        empty array).
    """
    classes, region = _classes_of(tables, site_ends, np.int64(state))
    return (classes.tobytes() if len(classes) else None), region


@called_with(TABLES, int32[::1], int64)
@njit(**OPTIONS)
def _classes_of(tables, site_ends, state):  # type: ignore[no-untyped-def]
    """Return what `classes_of` returns, with an empty array in place of None."""
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
        row = tables.states[here, code.STATE_ROW]
        if row >= 0 and not met[row]:
            met[row] = True
            rows[many_rows] = row
            many_rows += 1
        if tables.states[here, code.STATE_LITERAL] >= 0:
            literals[tables.states[here, code.STATE_LITERAL]] = True
    # Each literal is a class of its own. A stored automaton may have any number of literals.
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
    """Return the class of each byte (int32 [256]), and whether `rows` or `literals` read it (bool [256])."""
    classes = np.zeros(256, np.int32)
    # A byte of each class.
    samples = np.zeros(256, np.int32)
    own = np.full(256, -1, np.int32)
    read = np.zeros(256, np.bool_)
    for byte in literals:
        own[byte] = byte
        read[byte] = True
    many = _split(classes, samples, 1, own)
    for row in rows:
        many = _split(classes, samples, many, table[row])
        for byte in range(256):
            read[byte] |= table[row, byte] >= 0
    for byte in LEADS_OUT:
        read[byte] = False
    return classes, read


@njit(**OPTIONS)
def _split(classes, samples, many, targets):  # type: ignore[no-untyped-def]
    """Split the `many` classes of bytes whose bytes have different targets. Return the new number of classes."""
    alike = True
    for byte in range(256):
        alike &= targets[byte] == targets[samples[classes[byte]]]
    if alike:  # most rows split nothing
        return many
    former = classes.copy()
    before = many
    for byte in range(256):
        if targets[byte] != targets[samples[former[byte]]]:
            number = before
            while number < many and (
                former[samples[number]] != former[byte] or targets[samples[number]] != targets[byte]
            ):
                number += 1
            if number == many:
                samples[many] = byte
                many += 1
            classes[byte] = number
    return many


@called_with(TABLES)
@njit(**OPTIONS)
def site_ends_of(tables):  # type: ignore[no-untyped-def]
    """Compute where the return sites in `tables.returns` end. A return site is the list of a call's return states.

    Args:
        tables: Tables of the automaton. `returns` contains all return sites, one after the other.

    Returns:
        For each index in `returns`, the end (exclusive) of the return site that contains the index, int32 [r].
    """
    instructions = tables.instructions
    many = tables.returns.shape[0]
    begins = np.zeros(many + 1, np.bool_)
    for number in range(instructions.shape[0]):
        if instructions[number, code.INSTRUCTION_MOVE] == code.CALL:
            begins[instructions[number, code.INSTRUCTION_SITE]] = True
    ends = np.empty(many, np.int32)
    end = np.int32(many)
    for place in range(many - 1, -1, -1):
        ends[place] = end
        if begins[place]:
            end = np.int32(place)
    return ends


@njit(inline="always", **OPTIONS)
def _add(queue, seen, many, state, called):  # type: ignore[no-untyped-def]
    """Add `state` (or -1) to the queue unless it was queued before. Return the length of the queue."""
    # Bit 0: seen in the rule of the first state, bit 1: seen in one that it calls.
    bit = np.uint8(1) << np.uint8(called)
    if state >= 0 and not seen[state] & bit and many <= _MOST_STATES:
        seen[state] |= bit
        queue[many] = np.int64(state) << 1 | called
        many += 1
    return many


@njit(**OPTIONS, **INNER)
def _region(tables, site_ends, start):  # type: ignore[no-untyped-def]
    """Return the states in which bytes may be read from `start` until a byte of `LEADS_OUT`, `start` included.

    Each entry is 2 * state, plus 1 if the state is in a called rule (which may have other callers). The result is empty
    if reading may leave the rule of `start`, or if there are more than _MOST_STATES states.
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
        number = states[state, code.STATE_INSTRUCTION] if done else np.int32(0)
        done += 1
        move = instructions[number, code.INSTRUCTION_MOVE] if number else -1
        target = instructions[number, code.INSTRUCTION_TARGET]
        if move == code.RETURN:
            if not called:
                return queue[:0]
            continue
        if move == code.CALL:
            site = instructions[number, code.INSTRUCTION_SITE]
            for place in range(site, site_ends[site]):
                many = _add(queue, seen, many, returns[place], called)
            many = _add(queue, seen, many, target, np.int64(1))
            continue
        if move in (code.GOTO, code.OTHERWISE):
            many = _add(queue, seen, many, target, called)
        if move == code.GOTO:
            continue
        if states[state, code.STATE_EXIT] >= 0:
            return queue[:0]
        if states[state, code.STATE_LITERAL] >= 0 and states[state, code.STATE_LITERAL] not in LEADS_OUT:
            many = _add(queue, seen, many, state + 1, called)
        row = states[state, code.STATE_ROW]
        added = np.int32(-1)
        for byte in range(256 if row >= 0 else 0):
            if table[row, byte] != added and byte not in LEADS_OUT:
                added = table[row, byte]
                many = _add(queue, seen, many, added, called)
    return queue[:many].copy()
