"""Compiled steps of a `Machine`: what one byte, or the bytes of one token, do to a configuration.

A *configuration* is (state, register, frame). `state` is a row of `Machine.states`; `register` belongs to the rule
instance being matched (it counts items or characters, holds the position among property names, or a bit for each name
that has been seen); `frame` is the hash-consed return stack: frame f returns to `returns[frames[f, SITE] + label]` with
the register `frames[f, SAVED]`; frame 0 is the bottom.

Every kernel takes `tables`, which is `Machine.tables`, and `stack`: (frames int64 [n, 5], buckets int64 [power of two],
counters int64 [1], the number of frames in use, trace int64 [2 + 3 * LEVELS]). Both are plain tuples; `entry_kernels`,
which are what is called from Python, make them.

The *trace* notes what a walk has looked at besides the state it began in. Level 0 is the rule it began in, level j the
caller that it gets to by leaving j frames. For each level it holds the register that was found there (ORIGIN) and for
which values instead every question would have got the same answer (LOW, HIGH); LOOKED_INTO says how many frames have
been left, the bottom of the stack counting as one. Walks that begin in the same state, with equal sites of that many
frames and registers in these bounds, go the same way: they have the same mask row (see `row_classes`). Registers are
only counted up, so one that stems from a level differs from its origin by as much whatever that was.

All loops release the GIL and keep no lock: the caller serialises those that may add frames. Index checks are off, so
`Machine.validate` must have seen every array before a kernel does. A kernel that finds the frame table full answers
FRAMES_FULL and has done nothing that doing it again would not overwrite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Columns of `Machine.states`.
LIT, ROW, EXIT, OP, LOOP = range(5)
# Columns of `Machine.ops`.
GUARD_START, GUARD_END, ACTION, VALUE, MOVE, TARGET, SITE_BASE, ENTRY_MODE = range(8)
# Values of ACTION and MOVE.
KEEP, INCREMENT, ASSIGN, SET_BIT = range(4)
STAY, CALL, RETURN, GOTO, OTHERWISE = range(5)
# The first bound of a guard over the bits of the register instead of its value; its masks follow as (low, high) halves.
SOME_CLEAR, ALL_SET, ADVICE = -2, -3, -4
HALF = 31
"""Bits in one half of a mask."""
# Values of ENTRY_MODE: the register that a called rule begins with.
ENTER_AT_ZERO, ENTER_DEEPER, INHERIT = range(3)
# Columns of the frame table; NEXT chains a hash bucket, DEPTH counts the frames below.
PARENT, SITE, SAVED, NEXT, DEPTH = range(5)
# Places in the trace: the first frame, how many were left, and from there on three numbers for each level.
BASE, LOOKED_INTO, FIRST_LEVEL = range(3)
ORIGIN, LOW, HIGH = range(3)
LEVELS = 12
"""The trace has room for so many levels; what looks further down depends on more than it tells."""
# Columns of `Machine.loops`.
LOOP_MINIMUM, LOOP_MAXIMUM, LOOP_BASE = range(3)

ACCEPT = 0
"""The state after everything has been matched: no byte leaves it."""
TOLERATES_ANY, TOLERATES_UNESCAPED = -2, -3
"""Values of LOOP_BASE for states that allow every character (or every unescaped one) without being a loop."""
DEAD = -1
FRAMES_FULL = -2
SILENT_MOVES = 256
"""The most moves between two bytes. Compiled automata need a handful; a hostile one must not hang the reader."""

FAR = 1 << 40
"""Further than any register gets."""

OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
BORROWS: dict[str, Any] = {**OPTIONS, "_nrt": False}
"""For kernels that neither make nor return arrays: they count no references to those they are passed, which was two
fifths of their time (docs/decisions/0029)."""


@njit(inline="always", **BORROWS)
def bucket_of(buckets, first, second, third):  # type: ignore[no-untyped-def]
    """The hash bucket of three integers (multiplicative hashing; the number of buckets is a power of two)."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= np.uint64(third) * np.uint64(0x165667B19E3779F9)
    mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(buckets.shape[0] - 1))


@njit(inline="always", **BORROWS)
def push_frame(stack, parent, site, saved):  # type: ignore[no-untyped-def]
    """The frame (parent, site, saved), made when new; FRAMES_FULL when the table must grow first."""
    frames, buckets, counters, _ = stack
    bucket = bucket_of(buckets, parent, site, saved)
    frame = np.int64(buckets[bucket])
    while frame >= 0:
        if frames[frame, PARENT] == parent and frames[frame, SITE] == site and frames[frame, SAVED] == saved:
            return frame
        frame = frames[frame, NEXT]
    frame = counters[0]
    if frame >= frames.shape[0]:
        return np.int64(FRAMES_FULL)
    frames[frame, PARENT] = parent
    frames[frame, SITE] = site
    frames[frame, SAVED] = saved
    frames[frame, NEXT] = buckets[bucket]
    frames[frame, DEPTH] = frames[parent, DEPTH] + 1
    buckets[bucket] = frame
    counters[0] = frame + 1
    return frame


@njit(**BORROWS)
def rehash_frames(frames, buckets, many):  # type: ignore[no-untyped-def]
    """Lay the hash chains of frames [1, many) into fresh `buckets` (int64 [power of two], filled with -1)."""
    for frame in range(1, many):
        bucket = bucket_of(buckets, frames[frame, PARENT], frames[frame, SITE], frames[frame, SAVED])
        frames[frame, NEXT] = buckets[bucket]
        buckets[bucket] = frame


@njit(inline="always", **BORROWS)
def passes(guards, start, end, register):  # type: ignore[no-untyped-def]
    """Whether the register passes the guard of rows [start, end), at least one.

    Sorted intervals: its value lies in one of them. SOME_CLEAR: one of the masks has a bit that it has not. ALL_SET: it
    has all bits of one of the masks. ADVICE holds for whoever looks for a short completion, and always passes.
    """
    kind = guards[start, 0]
    if kind == ADVICE:
        return True
    if kind in (SOME_CLEAR, ALL_SET):
        for i in range(start + 1, end):
            mask = np.int64(guards[i, 0]) | (np.int64(guards[i, 1]) << HALF)
            if ((register & mask) == mask) == (kind == ALL_SET):
                return True
        return False
    begun = _intervals_begun(guards, start, end, register)
    return begun > start and register <= guards[begun - 1, 1]


@njit(inline="always", **BORROWS)
def _intervals_begun(guards, start, end, register):  # type: ignore[no-untyped-def]
    """The place after the last of the sorted intervals that begins at or before the register (binary search)."""
    while start < end:
        middle = (start + end) >> 1
        if guards[middle, 0] <= register:
            start = middle + 1
        else:
            end = middle
    return start


@njit(inline="always", **BORROWS)
def _begin_level(trace, level, register):  # type: ignore[no-untyped-def]
    place = FIRST_LEVEL + 3 * level
    trace[place + ORIGIN] = register
    trace[place + LOW] = -FAR
    trace[place + HIGH] = FAR


@njit(inline="always", **BORROWS)
def begin_trace(stack, register, frame):  # type: ignore[no-untyped-def]
    """Start noting what a walk from here depends on."""
    trace = stack[3]
    trace[BASE] = frame
    trace[LOOKED_INTO] = 0
    _begin_level(trace, 0, register)


@njit(**BORROWS)
def depend(stack, register, frame, low, high):  # type: ignore[no-untyped-def]
    """Note that the walk goes on like this for values of `register` from `low` to `high` only.

    The register may stem from that of any level at or below its own.
    """
    frames, trace = stack[0], stack[3]
    above = frames[frame, DEPTH] - frames[trace[BASE], DEPTH]
    for level in range(max(-above, 0), min(trace[LOOKED_INTO], LEVELS - 1) + 1):
        if level == 0 and above == 0 and frame != trace[BASE]:
            continue
        place = FIRST_LEVEL + 3 * level
        shift = trace[place + ORIGIN] - register
        trace[place + LOW] = max(trace[place + LOW], low + shift)
        trace[place + HIGH] = min(trace[place + HIGH], high + shift)


@njit(inline="always", **BORROWS)
def look_into(stack, frame):  # type: ignore[no-untyped-def]
    """Note that the walk looks into `frame` (0: sees that nothing lies below)."""
    frames, trace = stack[0], stack[3]
    level = frames[trace[BASE], DEPTH] - frames[frame, DEPTH] + 1
    if level > trace[LOOKED_INTO]:
        trace[LOOKED_INTO] = level
        if level < LEVELS:
            _begin_level(trace, level, frames[frame, SAVED])


@njit(**BORROWS)
def _passes_here(stack, guards, start, end, register, frame):  # type: ignore[no-untyped-def]
    """`passes`, noting on what the answer depends."""
    kind = guards[start, 0]
    if kind in (SOME_CLEAR, ALL_SET):
        depend(stack, register, frame, register, register)
    elif kind != ADVICE:
        begun = _intervals_begun(guards, start, end, register)
        low = np.int64(-FAR)
        high = np.int64(guards[begun, 0]) - 1 if begun < end else np.int64(FAR)
        if begun > start and register <= guards[begun - 1, 1]:
            low = np.int64(guards[begun - 1, 0])
            high = np.int64(guards[begun - 1, 1])
        elif begun > start:
            low = np.int64(guards[begun - 1, 1]) + 1
        depend(stack, register, frame, low, high)
    return passes(guards, start, end, register)


@njit(**BORROWS)
def arrive(tables, stack, state, register, frame):  # type: ignore[no-untyped-def]
    """Follow everything that happens on entering `state` without consuming a byte: guards, counting, calls, returns.

    Returns the configuration at the next state that consumes a byte (or ACCEPT), or DEAD / FRAMES_FULL as its state.
    """
    states, _, ops, guards, returns, _ = tables
    frames = stack[0]
    for _ in range(SILENT_MOVES):
        op = states[state, OP]
        if op == 0:
            return state, register, frame
        start = ops[op, GUARD_START]
        end = ops[op, GUARD_END]
        move = ops[op, MOVE]
        if end > start and not _passes_here(stack, guards, start, end, register, frame):
            if move != OTHERWISE:
                return np.int64(DEAD), register, frame
            state = np.int64(ops[op, TARGET])
            continue
        action = ops[op, ACTION]
        if action == INCREMENT:
            value = np.int64(ops[op, VALUE])
            if register < value:
                depend(stack, register, frame, np.int64(-FAR), value - 1)
                register += 1
            else:
                depend(stack, register, frame, value, np.int64(FAR))
        elif action == ASSIGN:
            register = np.int64(ops[op, VALUE])
        elif action == SET_BIT:
            depend(stack, register, frame, register, register)
            register |= np.int64(1) << np.int64(ops[op, VALUE])
        if move in (STAY, OTHERWISE):
            return state, register, frame
        if move == CALL:
            pushed = push_frame(stack, frame, np.int64(ops[op, SITE_BASE]), register)
            if pushed < 0:
                return pushed, register, frame
            frame = pushed
            mode = ops[op, ENTRY_MODE]
            if mode == ENTER_AT_ZERO:
                register = np.int64(0)
            elif mode == ENTER_DEEPER:
                register += 1
            state = np.int64(ops[op, TARGET])
        elif move == RETURN:
            look_into(stack, frame)
            if frame == 0:
                return np.int64(ACCEPT), np.int64(0), frame
            state = np.int64(returns[frames[frame, SITE] + ops[op, TARGET]])
            register = frames[frame, SAVED]
            frame = frames[frame, PARENT]
            if state < 0:
                return np.int64(DEAD), register, frame
        else:
            state = np.int64(ops[op, TARGET])
    return np.int64(DEAD), register, frame


@njit(inline="always", **BORROWS)
def step(tables, stack, state, register, frame, byte):  # type: ignore[no-untyped-def]
    """The configuration after `byte`; its state is DEAD when it is forbidden, FRAMES_FULL when it must be redone.

    Most bytes are read by the state itself and set nothing else in motion: only the others are worth a call.
    """
    states = tables[0]
    if states[state, LIT] == byte:
        target = state + 1
    else:
        row = states[state, ROW]
        target = np.int64(tables[1][row, byte]) if row >= 0 else np.int64(DEAD)
    if target >= 0:
        if states[target, OP] != 0:
            target, register, frame = arrive(tables, stack, target, register, frame)
    elif states[state, EXIT] >= 0:
        target, register, frame = _leave_and_read(tables, stack, state, register, frame, byte)
    return target, register, frame


@njit(**BORROWS)
def leave(tables, stack, state, register, frame):  # type: ignore[no-untyped-def]
    """Where the caller goes on when `state`, which is not self-delimiting (a number, white space), ends here.

    The state of the result is DEAD when it cannot end here, FRAMES_FULL when it must be redone.
    """
    label = tables[0][state, EXIT]
    if label < 0:
        return np.int64(DEAD), register, frame
    look_into(stack, frame)
    if frame == 0:
        return np.int64(DEAD), register, frame
    frames = stack[0]
    state = np.int64(tables[4][frames[frame, SITE] + label])
    register = frames[frame, SAVED]
    frame = frames[frame, PARENT]
    if state < 0:
        return np.int64(DEAD), register, frame
    return arrive(tables, stack, state, register, frame)


@njit(**BORROWS)
def _leave_and_read(tables, stack, state, register, frame, byte):  # type: ignore[no-untyped-def]
    """What `step` does where `state` cannot read `byte` itself: its callers may."""
    states, table = tables[0], tables[1]
    for _ in range(SILENT_MOVES):
        state, register, frame = leave(tables, stack, state, register, frame)
        if state < 0:
            return state, register, frame
        row = states[state, ROW]
        if states[state, LIT] == byte:
            return arrive(tables, stack, state + 1, register, frame)
        if row >= 0 and table[row, byte] >= 0:
            return arrive(tables, stack, np.int64(table[row, byte]), register, frame)
    return np.int64(DEAD), register, frame


@njit(**BORROWS)
def may_end(tables, stack, state, register, frame):  # type: ignore[no-untyped-def]
    """1 when the text may stop here, 0 when it may not, FRAMES_FULL when it must be asked again."""
    states = tables[0]
    for _ in range(SILENT_MOVES):
        if state == ACCEPT:
            return np.int64(1)
        if states[state, EXIT] >= 0 and frame == 0:
            look_into(stack, frame)
            return np.int64(1)
        state, register, frame = leave(tables, stack, state, register, frame)
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
    return np.int64(0)
