"""The tables of a pushdown automaton: their columns, the values in them, and what one instruction does.

A state reads one byte by its literal (this very byte leads to the next state) or any byte by its dense row. Entering a
state runs its instruction: a *guard* that the counter must pass, an *action* on the counter, a *move* to elsewhere.

`perform` is what instructions mean to the counter. Moves are made by whoever walks: `matching.kernels.step.arrive` over
real stacks, `intersect` and `shortest` over rules; `liveness` and `byte_classes` look at where moves lead alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int32, int64, njit, types
from numpy.typing import NDArray

from grammar_workers.numba_options import BORROWS, called_with, readonly


class Tables(NamedTuple):
    """What kernels take of a `PushdownAutomaton`; all int32, columns are named below."""

    states: NDArray[np.int32]
    """[n, STATE_COLUMNS]"""
    table: NDArray[np.int32]
    """[rows, 256]: the state after each byte or DEAD"""
    instructions: NDArray[np.int32]
    """[k, INSTRUCTION_COLUMNS]"""
    guards: NDArray[np.int32]
    """[g, GUARD_COLUMNS]"""
    returns: NDArray[np.int32]
    """[r]: the state after a return with each label, site after site; DEAD where the label is not acceptable"""
    loops: NDArray[np.int32]
    """[l, LOOP_COLUMNS]"""


_TABLE = readonly(int32[:, ::1])
TABLES = types.NamedTuple((_TABLE, _TABLE, _TABLE, _TABLE, readonly(int32[::1]), _TABLE), Tables)
"""What numba calls those of a `PushdownAutomaton`."""

DEAD = -1
"""No state."""
ACCEPT = 0
"""The state after everything has been matched: no byte leaves it."""
START = 1
"""The state in which matching begins."""

STATE_LITERAL, STATE_ROW, STATE_EXIT, STATE_INSTRUCTION, STATE_LOOP, STATE_COLUMNS = range(6)
"""The byte that leads to the next state, the dense row of all others, the label with which the rule may return before a
byte that neither reads (each -1 for none); the numbers of an instruction and of a loop (0 for none)."""

(
    INSTRUCTION_GUARD_START,
    INSTRUCTION_GUARD_END,
    INSTRUCTION_ACTION,
    INSTRUCTION_VALUE,
    INSTRUCTION_MOVE,
    INSTRUCTION_TARGET,
    INSTRUCTION_SITE,
    INSTRUCTION_ENTRY,
    INSTRUCTION_COLUMNS,
) = range(9)
"""The rows [start, end) of the guard, none if empty; the action and its operand; the move, the state that it leads to
(the label of a RETURN), where the return site of a CALL begins, and the counter of the rule that it calls."""
KEEP, INCREMENT, ASSIGN, SET_BIT, ACTIONS = range(5)
"""Actions: leave the counter; count up to the operand at most; make it the operand; set the bit of this number."""
STAY, CALL, RETURN, GOTO, OTHERWISE = range(5)
"""Moves. OTHERWISE stays when the guard is passed and goes on to the target when it is not; all others fail then."""
ENTER_AT_ZERO, ENTER_DEEPER, INHERIT = range(3)
"""The counter that a called rule begins with: 0, one more than the caller's, the caller's."""

GUARD_LOW, GUARD_HIGH, GUARD_COLUMNS = range(3)
"""A guard over the value of the counter: sorted, disjoint, inclusive intervals, one of which must hold it."""
GUARD_KIND, GUARD_COUNT = GUARD_LOW, GUARD_HIGH
"""The first row of a guard over its bits instead. Masks follow, low halves in the first column and high halves in the
second. Lower bounds are -1 or more, kinds are less."""
SOME_CLEAR, ALL_SET, ADVICE = -2, -3, -4
"""Kinds: one of the masks has a bit that the counter has not; the counter has all bits of one of the masks; passed by
everybody but who looks for a short completion, GUARD_COUNT being the number of masks to be heeded everywhere."""
GUARD_HALF = 31
"""Bits in one half of a mask."""

LOOP_MINIMUM, LOOP_MAXIMUM, LOOP_BASE, LOOP_RUN, LOOP_COLUMNS = range(5)
"""A free string: its bounds in characters (no maximum: -1) and FREE_STRING. Or the number of the state that this one is
like but for some texts. Or the values of the counter with which characters are tolerated, which, and how many of them
(LOOP_RUN, at most TOLERATED_RUN; that of others is TOLERATED_RUN)."""
FREE_STRING, TOLERATES_ANY, TOLERATES_UNESCAPED = -1, -2, -3
"""Values of LOOP_BASE that are no states. The last two say that every text of at most LOOP_RUN characters goes on
from here, whatever it leads to: of all characters but RARE ones, or but those and what has an escape or ends a line."""
TOLERATED_RUN = 32
RARE = "\x1c\x1d\x1e\x1f\x85\ufeff"
"""Characters that are white space to one dialect of regular expressions only, so neither in `\\s` nor in `\\S`."""

EDGE_STATE, EDGE_FIRST, EDGE_LAST, EDGE_TARGET, EDGE_COLUMNS = range(5)
"""Tokens, from the first to the last one, that may come where a token begins in this state, whatever their bytes, and
where they lead. Of several edges of a token the first one counts."""

BOUNDARY_STATE, BOUNDARY_TARGET, BOUNDARY_COLUMNS = range(3)
"""A state in which tokens are counted: where one ends in it, the next one begins in the target."""

DISTINCT_SITE, DISTINCT_LABELS, DISTINCT_NAMES, DISTINCT_ENDLESS, DISTINCT_COLUMNS = range(5)
"""A return site to which what has been called returns with something new: with a label below DISTINCT_LABELS, its value
differs from all that returned so to one of these sites from the same rule. DISTINCT_NAMES: 1 for the rest of a property
name behind its quote, 0 for a value. DISTINCT_ENDLESS: 1 where each part of that rule behind its first one has more
values than any text has room for, so that none can have used them up."""

SILENT_MOVES = 256
"""The most moves between two bytes. Compiled automata need a handful; a hostile one must not hang the reader."""
FAR = 1 << 40
"""Further than any counter gets."""


@njit(inline="always", **BORROWS)
def _intervals_begun(guards, start, end, counter):  # type: ignore[no-untyped-def]
    """The place after the last of the sorted intervals that begins at or before the counter (binary search)."""
    while start < end:
        middle = (start + end) >> 1
        if guards[middle, GUARD_LOW] <= counter:
            start = middle + 1
        else:
            end = middle
    return start


@njit(inline="always", **BORROWS)
def _passes_bits(guards, start, end, counter, kind):  # type: ignore[no-untyped-def]
    """Whether the counter passes a guard of masks, SOME_CLEAR or ALL_SET."""
    for i in range(start + 1, end):
        mask = np.int64(guards[i, GUARD_LOW]) | (np.int64(guards[i, GUARD_HIGH]) << GUARD_HALF)
        if ((counter & mask) == mask) == (kind == ALL_SET):
            return True
    return False


@called_with(int64, int64)
@njit(inline="always", **BORROWS)
def entered(counter, mode):  # type: ignore[no-untyped-def]
    """The counter that a called rule begins with, by the INSTRUCTION_ENTRY of the call and the caller's counter."""
    if mode == ENTER_AT_ZERO:
        return np.int64(0)
    return np.int64(counter) + 1 if mode == ENTER_DEEPER else np.int64(counter)


@called_with(_TABLE, _TABLE, int64, int64)
@njit(inline="always", **BORROWS)
def perform(instructions, guards, number, counter):  # type: ignore[no-untyped-def]
    """Whether the counter passes the guard of an instruction, and the counter after its action (as it was if not).

    And bounds of the counter, inclusive, within which the answer to the first would have been the same, and the counter
    would have changed by as much. ASSIGN needs none: what it makes of the counter does not depend on it.
    """
    low, high = np.int64(-FAR), np.int64(FAR)
    start = instructions[number, INSTRUCTION_GUARD_START]
    end = instructions[number, INSTRUCTION_GUARD_END]
    if end > start:
        passed = True
        kind = guards[start, GUARD_KIND]
        if kind in (SOME_CLEAR, ALL_SET):
            low = high = np.int64(counter)
            passed = _passes_bits(guards, start, end, counter, kind)
        elif kind != ADVICE:
            begun = _intervals_begun(guards, start, end, counter)
            passed = begun > start and counter <= guards[begun - 1, GUARD_HIGH]
            if passed:
                low = np.int64(guards[begun - 1, GUARD_LOW])
                high = np.int64(guards[begun - 1, GUARD_HIGH])
            else:
                if begun > start:
                    low = np.int64(guards[begun - 1, GUARD_HIGH]) + 1
                if begun < end:
                    high = np.int64(guards[begun, GUARD_LOW]) - 1
        if not passed:
            return False, np.int64(counter), low, high
    action = instructions[number, INSTRUCTION_ACTION]
    value = np.int64(instructions[number, INSTRUCTION_VALUE])
    if action == INCREMENT:
        if counter < value:
            return True, np.int64(counter) + 1, low, min(high, value - 1)
        return True, np.int64(counter), max(low, value), high
    if action == ASSIGN:
        return True, value, low, high
    if action == SET_BIT:
        return True, np.int64(counter) | np.int64(1) << value, np.int64(counter), np.int64(counter)
    return True, np.int64(counter), low, high
