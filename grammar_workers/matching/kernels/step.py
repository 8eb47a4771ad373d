"""Kernels that advance a pushdown automaton by one byte.

A *configuration* is (state, counter, frame):

- `state` is an index into `PushdownAutomaton.states`.
- `counter` belongs to the current call of a rule (part of the automaton that other parts call). It counts items or
  characters, or it is the index of the last property name, or it has a bit for each name that has occurred.
- `frame` is the top of the return stack, a row of the frame table. Frames are hash-consed: equal stacks have the same
  number. Frame 0 is the bottom.

A rule returns with a *label* (a small number). The caller then continues in the state `returns[site + label]` with the
counter `saved`. `site` and `saved` are the columns FRAME_SITE and FRAME_SAVED of the frame.

Most kernels take `tables` (`PushdownAutomaton.tables`) and `stack` (a `Stack`). Python calls the kernels in `entry`.

The *trace* records the parts of the configuration on which the result of a walk of the prefix tree depends. Level 0 is
the rule in which the walk began. Level j is the caller that is reached by popping j frames. For each level, the trace
has the counter at this level (TRACE_ORIGIN). It also has bounds (TRACE_LOW, TRACE_HIGH): for all counters within them,
all guards (conditions on the counter) have the same results, and an instruction changes all counters by the same amount
(see `perform`). TRACE_LOOKED_INTO is the number of popped frames; the bottom counts as one. Two walks have the same
mask if three conditions hold (see `mask_classes`): both begin in the same state, their topmost TRACE_LOOKED_INTO frames
have equal FRAME_SITEs, and their counters are within the bounds.

The caller must serialize kernels that may add frames. Kernels do not check indices, so `PushdownAutomaton.validate`
must have checked every array. If a kernel returns FRAMES_FULL (-2), enlarge the frame table and repeat the call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray

from grammar_workers.numba_options import BORROWS, INNER, called_with
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.instructions import entered, perform

# Columns of the frame table: the frame below; the index in `returns` where the return site begins; the caller's
# counter; the next frame in the same hash bucket (-1: none); the number of frames below.
FRAME_PARENT, FRAME_SITE, FRAME_SAVED, FRAME_NEXT, FRAME_DEPTH, FRAME_COLUMNS = range(6)
# Layout of the trace: the frame in which the walk began; the number of popped frames; the frame (or -1) whose
# counter was last found to have bounds, and the tightest lower and upper bound so far, relative to that counter; then
# TRACE_COLUMNS numbers for each level.
TRACE_BASE, TRACE_LOOKED_INTO, TRACE_NARROWED, TRACE_BELOW, TRACE_ABOVE, TRACE_FIRST_LEVEL = range(6)
# Columns of a level: the counter at this level; its lowest and its highest equivalent value.
TRACE_ORIGIN, TRACE_LOW, TRACE_HIGH, TRACE_COLUMNS = range(4)
# Maximum number of levels in the trace. The mask of a walk that pops more frames belongs to no class.
TRACE_LEVELS = 12
# Result in place of a state: the frame table has no room for another frame.
FRAMES_FULL = -2
# Number of rows of `Stack.events`, one of which holds the number of events.
EVENTS = 4096
# Events of a step: a rule was called, with this new frame; a caller, in this frame, has read the byte. All other
# events are labels with which the rule of a frame has returned.
CALLED, READ = -1, -2


class Stack(NamedTuple):
    """All return stacks of one automaton, and the trace of the current walk. All arrays are int64.

    Attributes:
        frames: Frame table, [n, FRAME_COLUMNS]. Rows from `used` on are not initialized.
        buckets: Hash table, [power of two]: the first frame with this hash, or -1.
        used: Number of frames, the bottom included, [1].
        trace: Record of the frames and counters on which the current mask depends, [TRACE_FIRST_LEVEL + TRACE_COLUMNS *
            TRACE_LEVELS].
        events: Calls and returns of rules in a step as (frame, event), [EVENTS, 2], see `entry.step_noting`. The first
            row holds the number of events, or -1 if events are not recorded.
    """

    frames: NDArray[np.int64]
    buckets: NDArray[np.int64]
    used: NDArray[np.int64]
    trace: NDArray[np.int64]
    events: NDArray[np.int64]


# The numba type of `Stack`.
STACK = types.NamedTuple((int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[:, ::1]), Stack)


@njit(inline="always", **BORROWS)
def bucket_of(buckets, first, second, third):  # type: ignore[no-untyped-def]
    """Return the bucket of three integers in a hash table: an index into the array `buckets` (length: power of two)."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= np.uint64(third) * np.uint64(0x165667B19E3779F9)
    mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(buckets.shape[0] - 1))


@njit(inline="always", **BORROWS)
def push_frame(stack, parent, site, saved):  # type: ignore[no-untyped-def]
    """Return the number of the stack frame with the given contents. A new frame is added to the frame table.

    Args:
        stack: The return stacks, changed in place.
        parent: Number of the frame below.
        site: Index in `returns` where the return site (return states of the call, by label) begins.
        saved: The caller's counter.

    Returns:
        The number of the frame. FRAMES_FULL if the frame is new and the table is full.
    """
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
    buckets[bucket] = frame
    used[0] = frame + 1
    return frame


@called_with(int64[:, ::1], int64[::1], int64)
@njit(**BORROWS)
def rehash_frames(frames, buckets, many):  # type: ignore[no-untyped-def]
    """Rebuild the hash table of a frame table.

    Args:
        frames: Frame table, int64 [n, FRAME_COLUMNS]. The column FRAME_NEXT is changed.
        buckets: The new hash table, int64 [power of two]. The caller fills it with -1.
        many: Number of frames in the table, from row 0.
    """
    for frame in range(1, many):
        bucket = bucket_of(buckets, frames[frame, FRAME_PARENT], frames[frame, FRAME_SITE], frames[frame, FRAME_SAVED])
        frames[frame, FRAME_NEXT] = buckets[bucket]
        buckets[bucket] = frame


@njit(inline="always", **BORROWS)
def _begin_level(trace, level, counter):  # type: ignore[no-untyped-def]
    """Initialize a level of the trace with unlimited bounds."""
    place = TRACE_FIRST_LEVEL + TRACE_COLUMNS * level
    trace[place + TRACE_ORIGIN] = counter
    trace[place + TRACE_LOW] = -code.FAR
    trace[place + TRACE_HIGH] = code.FAR
    trace[TRACE_NARROWED] = -1


@njit(inline="always", **BORROWS)
def begin_trace(stack, counter, frame):  # type: ignore[no-untyped-def]
    """Reset the trace: the record of the frames and counters on which a mask depends.

    Args:
        stack: The return stacks. Its trace is changed.
        counter: Counter of the configuration in which the walk for the mask begins.
        frame: Frame (top of the return stack) of this configuration.
    """
    trace = stack.trace
    trace[TRACE_BASE] = frame
    trace[TRACE_LOOKED_INTO] = 0
    _begin_level(trace, 0, counter)


@njit(inline="always", **BORROWS)
def depend(stack, counter, frame, low, high):  # type: ignore[no-untyped-def]
    """Record that the mask is the same for all values of `counter` from `low` to `high`, but not for other values.

    The counter may have been computed from the counters of callers. So the bounds of several levels of the trace are
    narrowed: those of the rule and of its callers.

    Args:
        stack: The return stacks. Its trace (the frames and counters on which the mask depends) is changed.
        counter: Counter that an instruction has tested.
        frame: Frame (top of the return stack) when the counter was tested.
        low: Lowest value with the same result of the test.
        high: Highest value with the same result of the test.
    """
    trace = stack.trace
    # Counted strings call this for each byte, and it rarely narrows the bounds, so the test is inlined.
    if frame != trace[TRACE_NARROWED] or low - counter > trace[TRACE_BELOW] or high - counter < trace[TRACE_ABOVE]:
        _narrow(stack, counter, frame, low, high)


@njit(**BORROWS, **INNER)
def _narrow(stack, counter, frame, low, high):  # type: ignore[no-untyped-def]
    """Narrow the bounds of all levels from which the counter may derive."""
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
    """Record that the mask depends on a frame, because the frame is popped from the return stack.

    Args:
        stack: The return stacks. Its trace (the frames and counters on which the mask depends) is changed.
        frame: Number of the popped frame. 0: the return stack was empty.
    """
    frames, trace = stack.frames, stack.trace
    level = frames[trace[TRACE_BASE], FRAME_DEPTH] - frames[frame, FRAME_DEPTH] + 1
    if level > trace[TRACE_LOOKED_INTO]:
        trace[TRACE_LOOKED_INTO] = level
        if level < TRACE_LEVELS:
            _begin_level(trace, level, frames[frame, FRAME_SAVED])


@njit(inline="always", **BORROWS)
def _note(stack, frame, event):  # type: ignore[no-untyped-def]
    """Append an event if events are recorded."""
    many = stack.events[0, 0]
    if 0 <= many < EVENTS - 1:
        stack.events[many + 1, 0] = frame
        stack.events[many + 1, 1] = event
        stack.events[0, 0] = many + 1


@njit(inline="always", **BORROWS)
def _returned(tables, stack, frame, label):  # type: ignore[no-untyped-def]
    """Return the configuration to which the rule of `frame` (not 0) returns with `label`. It is not entered yet.

    Its state is negative if the caller has no state for this return.
    """
    _note(stack, frame, label)
    frames = stack.frames
    state = np.int64(tables.returns[frames[frame, FRAME_SITE] + label])
    return state, frames[frame, FRAME_SAVED], frames[frame, FRAME_PARENT]


@njit(**BORROWS, **INNER)
def arrive(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """Enter a state: run instructions (guards, counter changes, calls, returns, jumps) up to one that reads a byte.

    Args:
        tables: Tables of the automaton (`PushdownAutomaton.tables`).
        stack: The return stacks. New frames are added, and the trace (the frames and counters on which the mask
            depends) is updated.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.

    Returns:
        The configuration (state, counter, frame) that is reached. Its state reads a byte or is ACCEPT (0, the output
        ends). It is DEAD (-1) if a guard fails, FRAMES_FULL (-2) if the frame table is full.
    """
    instructions = tables.instructions
    for _ in range(code.SILENT_MOVES):
        number = tables.states[state, code.STATE_INSTRUCTION]
        if number == 0:
            return state, counter, frame
        passed, counter_after, low, high = perform(instructions, tables.guards, number, counter)
        if low > -code.FAR or high < code.FAR:
            depend(stack, counter, frame, low, high)
        counter = counter_after
        move = instructions[number, code.INSTRUCTION_MOVE]
        if not passed:
            if move != code.OTHERWISE:
                return np.int64(code.DEAD), counter, frame
            state = np.int64(instructions[number, code.INSTRUCTION_TARGET])
            continue
        if move in (code.STAY, code.OTHERWISE):
            return state, counter, frame
        if move == code.CALL:
            pushed = push_frame(stack, frame, np.int64(instructions[number, code.INSTRUCTION_SITE]), counter)
            if pushed < 0:
                return pushed, counter, frame
            frame = pushed
            _note(stack, frame, CALLED)
            counter = entered(counter, instructions[number, code.INSTRUCTION_ENTRY])
            state = np.int64(instructions[number, code.INSTRUCTION_TARGET])
        elif move == code.RETURN:
            look_into(stack, frame)
            if frame == 0:
                return np.int64(code.ACCEPT), np.int64(0), frame
            state, counter, frame = _returned(tables, stack, frame, instructions[number, code.INSTRUCTION_TARGET])
            if state < 0:
                return np.int64(code.DEAD), counter, frame
        else:
            state = np.int64(instructions[number, code.INSTRUCTION_TARGET])
    return np.int64(code.DEAD), counter, frame


@njit(inline="always", **BORROWS)
def target_of(tables, state, byte):  # type: ignore[no-untyped-def]
    """Return the next state after a byte that a state reads itself. Returns to calling rules are not considered.

    Args:
        tables: Tables of the automaton (`PushdownAutomaton.tables`).
        state: Index into the automaton's states.
        byte: The byte, 0 to 255.

    Returns:
        The next state, whose instruction has not been run; DEAD (-1) if `state` itself does not read the byte.
    """
    if tables.states[state, code.STATE_LITERAL] == byte:
        return np.int64(state + 1)
    row = tables.states[state, code.STATE_ROW]
    return np.int64(tables.table[row, byte]) if row >= 0 else np.int64(code.DEAD)


@njit(inline="always", **BORROWS)
def step(tables, stack, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    """Advance a configuration by one byte.

    The most frequent case is inlined: the state itself reads the byte, and no instruction follows.

    Args:
        tables: Tables of the automaton (`PushdownAutomaton.tables`).
        stack: The return stacks. New frames are added, and the trace (the frames and counters on which the mask
            depends) is updated.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.
        byte: The byte, 0 to 255.

    Returns:
        The configuration (state, counter, frame) after the byte. The state is DEAD (-1) if the byte is not allowed,
        FRAMES_FULL (-2) if the frame table is full.
    """
    states = tables.states
    target = target_of(tables, state, byte)
    if target >= 0:
        if states[target, code.STATE_INSTRUCTION] != 0:
            target, counter, frame = arrive(tables, stack, target, counter, frame)
    elif states[state, code.STATE_EXIT] >= 0:
        target, counter, frame = _leave_and_read(tables, stack, state, counter, frame, np.int64(byte))
    return target, counter, frame


@njit(**BORROWS, **INNER)
def leave(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return from a rule that ends without a delimiter (such as a number or white space) to its caller.

    Args:
        tables: Tables of the automaton (`PushdownAutomaton.tables`).
        stack: The return stacks. New frames are added, and the trace (the frames and counters on which the mask
            depends) is updated.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.

    Returns:
        The configuration (state, counter, frame) in which the caller continues. The state is DEAD (-1) if the rule
        cannot end here or the caller has no state for this return, FRAMES_FULL (-2) if the frame table is full.
    """
    label = tables.states[state, code.STATE_EXIT]
    if label < 0:
        return np.int64(code.DEAD), counter, frame
    look_into(stack, frame)
    if frame == 0:
        return np.int64(code.DEAD), counter, frame
    state, counter, frame = _returned(tables, stack, frame, label)
    if state < 0:
        return np.int64(code.DEAD), counter, frame
    return arrive(tables, stack, state, counter, frame)


@njit(**BORROWS, **INNER)
def _leave_and_read(tables, stack, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    """Advance by a byte that `state` does not read: return to callers until one reads it."""
    for _ in range(code.SILENT_MOVES):
        state, counter, frame = leave(tables, stack, state, counter, frame)
        if state < 0:
            return state, counter, frame
        target = target_of(tables, state, byte)
        if target >= 0:
            _note(stack, frame, READ)
            return arrive(tables, stack, target, counter, frame)
    return np.int64(code.DEAD), counter, frame


@njit(**BORROWS, **INNER)
def may_end(tables, stack, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return 1 if the output may end in a configuration, 0 if not, FRAMES_FULL (-2) if the frame table is full.

    Args:
        tables: Tables of the automaton (`PushdownAutomaton.tables`).
        stack: The return stacks. New frames are added, and the trace (the frames and counters on which the mask
            depends) is updated.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration, an index into the frame table; 0 for the empty stack.
    """
    states = tables.states
    for _ in range(code.SILENT_MOVES):
        if state == code.ACCEPT:
            return np.int64(1)
        if states[state, code.STATE_EXIT] >= 0 and frame == 0:
            look_into(stack, frame)
            return np.int64(1)
        state, counter, frame = leave(tables, stack, state, counter, frame)
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
    return np.int64(0)
