"""Compiled steps of a pushdown automaton: what one byte, or the bytes of one token, do to a configuration.

A *configuration* is (state, counter, frame). `state` is a row of `PushdownAutomaton.states`; `counter` belongs to the
rule instance being matched (it counts items or characters, holds the position among property names, or a bit for each
name that has been seen); `frame` is the hash-consed return stack: frame f returns to `returns[FRAME_SITE + label]` with
the counter FRAME_SAVED, columns of its row; frame 0 is the bottom.

Every kernel takes `tables`, which is `PushdownAutomaton.tables`, and a `Stack`. `entry` has what is called from
Python and makes them.

The *trace* notes what a walk has looked at besides the state it began in. Level 0 is the rule it began in, level j the
caller that it gets to by leaving j frames. For each level it holds the counter that was found there (TRACE_ORIGIN) and
for which values instead every question would have got the same answer (TRACE_LOW, TRACE_HIGH); TRACE_LOOKED_INTO says
how many frames have been left, the bottom of the stack counting as one. Walks that begin in the same state, with equal
sites of that many frames and counters in these bounds, go the same way: they have the same mask row (see
`mask_classes`). Within these bounds each action changes the counter by as much (`perform`), so one that stems from a
level differs from its origin by as much whatever that was.

The caller serialises kernels that may add frames. Index checks are off, so `PushdownAutomaton.validate` must have seen
every array before a kernel does. A kernel that finds the frame table full answers FRAMES_FULL and has done nothing that
doing it again would not overwrite.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray

from grammar_workers.numba_options import BORROWS, INNER, called_with
from grammar_workers.pushdown.instructions import (
    ACCEPT,
    CALL,
    DEAD,
    FAR,
    INSTRUCTION_ENTRY,
    INSTRUCTION_MOVE,
    INSTRUCTION_SITE,
    INSTRUCTION_TARGET,
    OTHERWISE,
    RETURN,
    SILENT_MOVES,
    STATE_EXIT,
    STATE_INSTRUCTION,
    STATE_LITERAL,
    STATE_ROW,
    STAY,
    entered,
    perform,
)

FRAME_PARENT, FRAME_SITE, FRAME_SAVED, FRAME_NEXT, FRAME_DEPTH, FRAME_AHEAD, FRAME_COLUMNS = range(7)
"""Columns of the frame table: the frame below, where the return site begins, the caller's counter; the next frame in
the same hash bucket (-1: none); how many frames are below; the last walk ahead that has looked where its caller goes on
(0: none, see `prefetch`)."""
TRACE_BASE, TRACE_LOOKED_INTO, TRACE_NARROWED, TRACE_BELOW, TRACE_ABOVE, TRACE_FIRST_LEVEL = range(6)
"""The trace: the frame it began in, how many were left; the frame (or -1) whose counter was last found to have bounds,
and the narrowest so far as seen from that counter; and from there on TRACE_COLUMNS numbers for each level."""
TRACE_ORIGIN, TRACE_LOW, TRACE_HIGH, TRACE_COLUMNS = range(4)
TRACE_LEVELS = 12
"""The trace has room for so many levels; what looks further down depends on more than it tells."""
FRAMES_FULL = -2
"""In place of a state: there is no room for another frame."""
EVENTS = 4096
CALLED, READ = -1, -2
"""Events of a step beside labels, with which the rule of a frame returns: a rule has been called with a frame; where
callers read the byte, which of them."""


class Stack(NamedTuple):
    """All return stacks of one automaton, and the trace of the walk that goes on; all int64."""

    frames: NDArray[np.int64]
    """[n, FRAME_COLUMNS]"""
    buckets: NDArray[np.int64]
    """[power of two]: the first frame with this hash, or -1"""
    used: NDArray[np.int64]
    """[1]: how many frames there are, the bottom included"""
    trace: NDArray[np.int64]
    """[TRACE_FIRST_LEVEL + TRACE_COLUMNS * TRACE_LEVELS]"""
    events: NDArray[np.int64]
    """[EVENTS, 2]: frames and events of a step, see `step_noting`; the first line has how many there are, -1 where
    nobody asks."""


STACK = types.NamedTuple((int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[:, ::1]), Stack)
"""The numba type of a `Stack`."""


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
    frames, buckets, used = stack.frames, stack.buckets, stack.used
    bucket = bucket_of(buckets, parent, site, saved)
    frame = np.int64(buckets[bucket])
    while frame >= 0:
        if (
            frames[frame, FRAME_PARENT] == parent
            and frames[frame, FRAME_SITE] == site
            and frames[frame, FRAME_SAVED] == saved
        ):
            return frame
        frame = frames[frame, FRAME_NEXT]
    frame = used[0]
    if frame >= frames.shape[0]:
        return np.int64(FRAMES_FULL)
    frames[frame, FRAME_PARENT] = parent
    frames[frame, FRAME_SITE] = site
    frames[frame, FRAME_SAVED] = saved
    frames[frame, FRAME_NEXT] = buckets[bucket]
    frames[frame, FRAME_DEPTH] = frames[parent, FRAME_DEPTH] + 1
    frames[frame, FRAME_AHEAD] = 0
    buckets[bucket] = frame
    used[0] = frame + 1
    return frame


@called_with(int64[:, ::1], int64[::1], int64)
@njit(**BORROWS)
def rehash_frames(frames, buckets, many):  # type: ignore[no-untyped-def]
    """Lay the hash chains of frames [1, many) into fresh `buckets` (int64 [power of two], filled with -1)."""
    for frame in range(1, many):
        bucket = bucket_of(buckets, frames[frame, FRAME_PARENT], frames[frame, FRAME_SITE], frames[frame, FRAME_SAVED])
        frames[frame, FRAME_NEXT] = buckets[bucket]
        buckets[bucket] = frame


@njit(inline="always", **BORROWS)
def _begin_level(trace, level, counter):  # type: ignore[no-untyped-def]
    place = TRACE_FIRST_LEVEL + TRACE_COLUMNS * level
    trace[place + TRACE_ORIGIN] = counter
    trace[place + TRACE_LOW] = -FAR
    trace[place + TRACE_HIGH] = FAR
    trace[TRACE_NARROWED] = -1


@njit(inline="always", **BORROWS)
def begin_trace(stack, counter, frame):  # type: ignore[no-untyped-def]
    """Start noting what a walk from here depends on."""
    trace = stack.trace
    trace[TRACE_BASE] = frame
    trace[TRACE_LOOKED_INTO] = 0
    _begin_level(trace, 0, counter)


@njit(inline="always", **BORROWS)
def depend(stack, counter, frame, low, high):  # type: ignore[no-untyped-def]
    """Note that the walk goes on like this for values of `counter` from `low` to `high` only.

    The counter may stem from that of any level at or below its own.
    """
    trace = stack.trace
    # Where characters are counted, each byte comes here, and few of them narrow anything.
    if frame != trace[TRACE_NARROWED] or low - counter > trace[TRACE_BELOW] or high - counter < trace[TRACE_ABOVE]:
        _narrow(stack, counter, frame, low, high)


@njit(**BORROWS, **INNER)
def _narrow(stack, counter, frame, low, high):  # type: ignore[no-untyped-def]
    frames, trace = stack.frames, stack.trace
    again = frame == trace[TRACE_NARROWED]
    trace[TRACE_NARROWED] = frame
    trace[TRACE_BELOW] = max(trace[TRACE_BELOW], low - counter) if again else low - counter
    trace[TRACE_ABOVE] = min(trace[TRACE_ABOVE], high - counter) if again else high - counter
    above = frames[frame, FRAME_DEPTH] - frames[trace[TRACE_BASE], FRAME_DEPTH]
    for level in range(max(-above, 0), min(trace[TRACE_LOOKED_INTO], TRACE_LEVELS - 1) + 1):
        if level == 0 and above == 0 and frame != trace[TRACE_BASE]:
            continue
        place = TRACE_FIRST_LEVEL + TRACE_COLUMNS * level
        shift = trace[place + TRACE_ORIGIN] - counter
        trace[place + TRACE_LOW] = max(trace[place + TRACE_LOW], low + shift)
        trace[place + TRACE_HIGH] = min(trace[place + TRACE_HIGH], high + shift)


@njit(inline="always", **BORROWS)
def look_into(stack, frame):  # type: ignore[no-untyped-def]
    """Note that the walk looks into `frame` (0: sees that nothing lies below)."""
    frames, trace = stack.frames, stack.trace
    level = frames[trace[TRACE_BASE], FRAME_DEPTH] - frames[frame, FRAME_DEPTH] + 1
    if level > trace[TRACE_LOOKED_INTO]:
        trace[TRACE_LOOKED_INTO] = level
        if level < TRACE_LEVELS:
            _begin_level(trace, level, frames[frame, FRAME_SAVED])


@njit(inline="always", **BORROWS)
def _note(stack, frame, event):  # type: ignore[no-untyped-def]
    """Note an event of a step if somebody asks."""
    many = stack.events[0, 0]
    if 0 <= many < EVENTS - 1:
        stack.events[many + 1, 0] = frame
        stack.events[many + 1, 1] = event
        stack.events[0, 0] = many + 1


@njit(**BORROWS, **INNER)
def arrive(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """Follow everything that happens on entering `state` without consuming a byte: guards, counting, calls, returns.

    Returns the configuration at the next state that consumes a byte (or ACCEPT), or DEAD / FRAMES_FULL as its state.
    """
    instructions, returns, frames = tables.instructions, tables.returns, stack.frames
    for _ in range(SILENT_MOVES):
        number = tables.states[state, STATE_INSTRUCTION]
        if number == 0:
            return state, counter, frame
        passed, counter_after, low, high = perform(instructions, tables.guards, number, counter)
        if low > -FAR or high < FAR:
            depend(stack, counter, frame, low, high)
        counter = counter_after
        move = instructions[number, INSTRUCTION_MOVE]
        if not passed:
            if move != OTHERWISE:
                return np.int64(DEAD), counter, frame
            state = np.int64(instructions[number, INSTRUCTION_TARGET])
            continue
        if move in (STAY, OTHERWISE):
            return state, counter, frame
        if move == CALL:
            pushed = push_frame(stack, frame, np.int64(instructions[number, INSTRUCTION_SITE]), counter)
            if pushed < 0:
                return pushed, counter, frame
            frame = pushed
            _note(stack, frame, CALLED)
            counter = entered(counter, instructions[number, INSTRUCTION_ENTRY])
            state = np.int64(instructions[number, INSTRUCTION_TARGET])
        elif move == RETURN:
            look_into(stack, frame)
            if frame == 0:
                return np.int64(ACCEPT), np.int64(0), frame
            _note(stack, frame, instructions[number, INSTRUCTION_TARGET])
            state = np.int64(returns[frames[frame, FRAME_SITE] + instructions[number, INSTRUCTION_TARGET]])
            counter = frames[frame, FRAME_SAVED]
            frame = frames[frame, FRAME_PARENT]
            if state < 0:
                return np.int64(DEAD), counter, frame
        else:
            state = np.int64(instructions[number, INSTRUCTION_TARGET])
    return np.int64(DEAD), counter, frame


@njit(inline="always", **BORROWS)
def step(tables, stack, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    """The configuration after `byte`; its state is DEAD when it is forbidden, FRAMES_FULL when it must be redone.

    Most bytes are read by the state itself and set nothing else in motion: only the others are worth a call.
    """
    states = tables.states
    if states[state, STATE_LITERAL] == byte:
        target = state + 1
    else:
        row = states[state, STATE_ROW]
        target = np.int64(tables.table[row, byte]) if row >= 0 else np.int64(DEAD)
    if target >= 0:
        if states[target, STATE_INSTRUCTION] != 0:
            target, counter, frame = arrive(tables, stack, target, counter, frame)
    elif states[state, STATE_EXIT] >= 0:
        target, counter, frame = _leave_and_read(tables, stack, state, counter, frame, np.int64(byte))
    return target, counter, frame


@njit(**BORROWS, **INNER)
def leave(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """Where the caller goes on when `state`, which is not self-delimiting (a number, white space), ends here.

    The state of the result is DEAD when it cannot end here, FRAMES_FULL when it must be redone.
    """
    label = tables.states[state, STATE_EXIT]
    if label < 0:
        return np.int64(DEAD), counter, frame
    look_into(stack, frame)
    if frame == 0:
        return np.int64(DEAD), counter, frame
    _note(stack, frame, label)
    frames = stack.frames
    state = np.int64(tables.returns[frames[frame, FRAME_SITE] + label])
    counter = frames[frame, FRAME_SAVED]
    frame = frames[frame, FRAME_PARENT]
    if state < 0:
        return np.int64(DEAD), counter, frame
    return arrive(tables, stack, state, counter, frame)


@njit(**BORROWS, **INNER)
def _leave_and_read(tables, stack, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    """What `step` does where `state` cannot read `byte` itself: its callers may."""
    states, table = tables.states, tables.table
    for _ in range(SILENT_MOVES):
        state, counter, frame = leave(tables, stack, state, counter, frame)
        if state < 0:
            return state, counter, frame
        row = states[state, STATE_ROW]
        target = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
        if states[state, STATE_LITERAL] == byte:
            target = np.int64(state + 1)
        if target >= 0:
            _note(stack, frame, READ)
            return arrive(tables, stack, target, counter, frame)
    return np.int64(DEAD), counter, frame


@njit(inline="always", **BORROWS)
def step_noting(tables, stack, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    """`step`, and how many events are in `stack.events` after it: all EVENTS - 1 where there may be more."""
    stack.events[0, 0] = 0
    state, counter, frame = step(tables, stack, state, counter, frame, byte)
    many = stack.events[0, 0]
    stack.events[0, 0] = -1
    return state, counter, frame, many


@njit(**BORROWS, **INNER)
def may_end(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """1 when the text may stop here, 0 when it may not, FRAMES_FULL when it must be asked again."""
    states = tables.states
    for _ in range(SILENT_MOVES):
        if state == ACCEPT:
            return np.int64(1)
        if states[state, STATE_EXIT] >= 0 and frame == 0:
            look_into(stack, frame)
            return np.int64(1)
        state, counter, frame = leave(tables, stack, state, counter, frame)
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
    return np.int64(0)
