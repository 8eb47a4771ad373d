"""The tables of a pushdown automaton: their columns, the values in them, and the effect of one instruction.

A state reads one byte by its *literal* or by its *dense row*. The literal is a byte that leads to the state with the
next number. A dense row has the next state for each of the 256 bytes. Entering a state runs its *instruction*. An
instruction has three parts: a *guard* (a condition on the counter), an *action* (a change of the counter) and a *move*
(a call, a return or a jump).

A *rule* is a part of the automaton that other states call. It returns with a *label*, a small number. A call has a
*return site*: the return states of the call, one per label.

`perform` implements guards and actions. The callers of `perform` implement the moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int32, int64, njit, types
from numpy.typing import NDArray

from grammar_workers.numba_options import BORROWS, called_with, readonly


class Tables(NamedTuple):
    """The arrays of a `PushdownAutomaton` that kernels (compiled loops) take together. All are int32.

    The constants of this module define the columns: `STATE_LITERAL`, `INSTRUCTION_MOVE` and so on.

    Attributes:
        states: States, [n, STATE_COLUMNS].
        table: Dense rows, [rows, 256]: the state after each byte, or DEAD.
        instructions: Instructions, which run on entering a state, [k, INSTRUCTION_COLUMNS]. Number 0 does nothing.
        guards: Guards (conditions on the counter), [g, GUARD_COLUMNS]. A guard has consecutive rows.
        returns: Return states of all calls, [r]. A call has one state per label (number with which a rule returns), in
            consecutive entries. DEAD: the caller does not accept the label.
        loops: Loops (records of the character sequences that a state allows, for faster masks), [l, LOOP_COLUMNS].
            Number 0 stands for no loop.
    """

    states: NDArray[np.int32]
    table: NDArray[np.int32]
    instructions: NDArray[np.int32]
    guards: NDArray[np.int32]
    returns: NDArray[np.int32]
    loops: NDArray[np.int32]


_TABLE = readonly(int32[:, ::1])
# The numba type of `Tables`, with read-only arrays.
TABLES = types.NamedTuple((_TABLE, _TABLE, _TABLE, _TABLE, readonly(int32[::1]), _TABLE), Tables)

# The value that stands for no state.
DEAD = -1
# The state after a complete match. No byte leads out of it.
ACCEPT = 0
# The state in which matching begins.
START = 1

# Columns of a state: the byte that leads to the next state; the dense row for all other bytes; the label with which
# the rule may return before a byte that neither literal nor row reads (each -1 for none); the instruction; the loop
# (each 0 for none).
STATE_LITERAL, STATE_ROW, STATE_EXIT, STATE_INSTRUCTION, STATE_LOOP, STATE_COLUMNS = range(6)

# Columns of an instruction: the rows [start, end) of the guard (empty range: no guard); the action and its operand;
# the move; the state that the move leads to (for RETURN: the label); the index in `returns` where the return site of a
# CALL begins; the counter with which the called rule begins (ENTER_AT_ZERO, ENTER_DEEPER or INHERIT).
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
# Actions: keep the counter; increment it, but not above the operand; set it to the operand; set the bit whose
# number is the operand.
KEEP, INCREMENT, ASSIGN, SET_BIT, ACTIONS = range(5)
# Moves. If the guard fails, OTHERWISE jumps to the target, and every other move is a dead end. If the guard passes,
# OTHERWISE stays.
STAY, CALL, RETURN, GOTO, OTHERWISE = range(5)
# The counter with which a called rule begins: 0, the caller's plus one, the caller's.
ENTER_AT_ZERO, ENTER_DEEPER, INHERIT = range(3)

# A guard over the value of the counter: sorted, disjoint, inclusive intervals. The counter passes if one interval
# contains it.
GUARD_LOW, GUARD_HIGH, GUARD_COLUMNS = range(3)
# The first row of a guard over the bits of the counter. The masks follow, one per row, with the low half in the
# first column and the high half in the second. A kind is below -1 and a lower bound is not, so the first row
# distinguishes the two sorts of guards.
GUARD_KIND, GUARD_COUNT = GUARD_LOW, GUARD_HIGH
# Kinds of guards over bits. SOME_CLEAR passes if at least one bit of some mask is clear in the counter. ALL_SET
# passes if all bits of some mask are set. ADVICE always passes in matching, but the search for a shortest completion
# enters the state only if all bits of some mask are set. GUARD_COUNT is the number of masks that always apply; the
# other masks apply only while the counter has the value with which the search began.
SOME_CLEAR, ALL_SET, ADVICE = -2, -3, -4
# Number of bits in one half of a mask.
GUARD_HALF = 31

# Columns of a loop, a property of a state that kernels use to compute masks faster. LOOP_BASE determines the sort of
# loop:
#
# - FREE_STRING: a JSON string of any characters. LOOP_MINIMUM and LOOP_MAXIMUM bound its length in characters (-1: no
#   maximum).
# - A state, which must be in a JSON string of any characters: this state has the same transitions as that one, except
#   for certain strings (such as declared property names). LOOP_MINIMUM and LOOP_MAXIMUM bound the length of the string,
#   as with FREE_STRING: the kernels do not read the loop of that state.
# - TOLERATES_ANY, TOLERATES_UNESCAPED: the state tolerates LOOP_RUN characters (at most TOLERATED_RUN) while the
#   counter is between LOOP_MINIMUM and LOOP_MAXIMUM (-1: no maximum).
#
# LOOP_RUN of the first two sorts is TOLERATED_RUN.
LOOP_MINIMUM, LOOP_MAXIMUM, LOOP_BASE, LOOP_RUN, LOOP_COLUMNS = range(5)
# Values of LOOP_BASE that are not states. A state tolerates characters if every string of at most LOOP_RUN of them
# is allowed from the state on, whatever states it leads to. TOLERATES_ANY: all characters except RARE ones.
# TOLERATES_UNESCAPED: in addition, except characters that need an escape or end a line.
FREE_STRING, TOLERATES_ANY, TOLERATES_UNESCAPED = -1, -2, -3
# Maximum number of characters that a state can tolerate.
TOLERATED_RUN = 32
# Characters that are white space in only one dialect of regular expressions, so they are neither in `\s` nor in
# `\S`.
RARE = "\x1c\x1d\x1e\x1f\x85\ufeff"

# Columns of a token edge: the tokens from EDGE_FIRST to EDGE_LAST are allowed, whatever their bytes, where a token
# begins in EDGE_STATE; they lead to EDGE_TARGET. If several edges of a state have the same token, the first one
# counts.
EDGE_STATE, EDGE_FIRST, EDGE_LAST, EDGE_TARGET, EDGE_COLUMNS = range(5)

# Columns of a boundary, for parts in which tokens are counted: if a token ends in BOUNDARY_STATE, the next token
# begins in BOUNDARY_TARGET.
BOUNDARY_STATE, BOUNDARY_TARGET, BOUNDARY_COLUMNS = range(3)

# Columns of a return site whose values must be unique (`uniqueItems`, or counted names of an object). If the called
# rule returns to DISTINCT_SITE with a label below DISTINCT_LABELS, the value that it has read must differ from all
# values that returned in this way to such sites of the same container. DISTINCT_NAMES: 1 if the value is the rest of a
# property name after the opening quote, else 0. DISTINCT_ENDLESS: 1 if each part of the container after the first one
# has more possible values than an output can contain, so that earlier values cannot exhaust them.
DISTINCT_SITE, DISTINCT_LABELS, DISTINCT_NAMES, DISTINCT_ENDLESS, DISTINCT_COLUMNS = range(5)

# Maximum number of moves between two bytes. Compiled automata need a handful. The limit keeps a malicious artifact
# from hanging the reader.
SILENT_MOVES = 256
# A value beyond every counter.
FAR = 1 << 40


@njit(inline="always", **BORROWS)
def _intervals_begun(guards, start, end, counter):  # type: ignore[no-untyped-def]
    """Return the index after the last of the sorted intervals that begins at or before the counter (binary search)."""
    while start < end:
        middle = (start + end) >> 1
        if guards[middle, GUARD_LOW] <= counter:
            start = middle + 1
        else:
            end = middle
    return start


@njit(inline="always", **BORROWS)
def _passes_bits(guards, start, end, counter, kind):  # type: ignore[no-untyped-def]
    """Return whether the counter passes a guard of masks, SOME_CLEAR or ALL_SET."""
    for i in range(start + 1, end):
        mask = np.int64(guards[i, GUARD_LOW]) | (np.int64(guards[i, GUARD_HIGH]) << GUARD_HALF)
        if ((counter & mask) == mask) == (kind == ALL_SET):
            return True
    return False


@called_with(int64, int64)
@njit(inline="always", **BORROWS)
def entered(counter, mode):  # type: ignore[no-untyped-def]
    """Return the counter with which a called rule begins, int64.

    Args:
        counter: The caller's counter.
        mode: ENTER_AT_ZERO: the rule begins with the counter 0. ENTER_DEEPER: with the caller's counter plus 1.
            INHERIT: with the caller's counter.
    """
    if mode == ENTER_AT_ZERO:
        return np.int64(0)
    return np.int64(counter) + 1 if mode == ENTER_DEEPER else np.int64(counter)


@called_with(_TABLE, _TABLE, int64, int64)
@njit(inline="always", **BORROWS)
def perform(instructions, guards, number, counter):  # type: ignore[no-untyped-def]
    """Check the guard (condition on the counter) of an instruction, and apply its action to the counter.

    The caller must perform the move of the instruction (call, return or jump).

    Args:
        instructions: All instructions of the automaton, `Tables.instructions`.
        guards: All guards of the automaton, `Tables.guards`.
        number: Number of the instruction, an index into `instructions`.
        counter: Counter before the instruction.

    Returns:
        A tuple (passed, counter, low, high). `passed` is True if the counter passes the guard. `counter` is the counter
        after the action, unchanged if the guard failed. `low` and `high` are inclusive bounds of a range that contains
        the counter. All counters in the range get the same result from the guard, and the action either adds the same
        amount to all of them or assigns the same value to all of them.
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
