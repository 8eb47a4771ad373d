"""Compiled loops over a `Machine`: one byte step, the prefix-tree walk that fills a mask row, and token advance.

A *configuration* is (state, register, frame). `state` is a row of `Machine.states`; `register` is the counter of the
rule instance being matched (items, characters, position among property names); `frame` is the hash-consed return stack:
frame f returns to `returns[frames[f, SITE] + label]` with the register `frames[f, SAVED]`; frame 0 is the bottom.

All loops release the GIL and keep no lock: the caller serialises those that may add frames. Index checks are off, so
`Machine.validate` must have seen every array before a kernel does.
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
KEEP, INCREMENT, ASSIGN = range(3)
STAY, CALL, RETURN, GOTO = range(4)
# Values of ENTRY_MODE: the register that a called rule begins with.
ENTER_AT_ZERO, ENTER_DEEPER, INHERIT = range(3)
# Columns of the frame table; NEXT chains a hash bucket.
PARENT, SITE, SAVED, NEXT = range(4)
# Columns of `Machine.loops`.
LOOP_MINIMUM, LOOP_MAXIMUM, LOOP_BASE = range(3)
# Columns of a prefix tree.
BYTE, DEPTH, END, TOKEN = range(4)

ACCEPT = 0
"""The state after everything has been matched: no byte leaves it."""
TOLERATES_ANY, TOLERATES_UNESCAPED = -2, -3
"""Values of LOOP_BASE for states that allow every character (or every unescaped one) without being a loop."""
DEAD = -1
FRAMES_FULL = -2
SILENT_MOVES = 256
"""The most moves between two bytes. Compiled automata need a handful; a hostile one must not hang the reader."""

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}


@njit(inline="always", **_OPTIONS)
def _bucket(buckets, first, second, third):  # type: ignore[no-untyped-def]
    """The hash bucket of three integers (multiplicative hashing; the number of buckets is a power of two)."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= np.uint64(third) * np.uint64(0x165667B19E3779F9)
    mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(buckets.shape[0] - 1))


@njit(inline="always", **_OPTIONS)
def push_frame(frames, buckets, counters, parent, site, saved):  # type: ignore[no-untyped-def]
    """The frame (parent, site, saved), made when new; FRAMES_FULL when the table must grow first."""
    bucket = _bucket(buckets, parent, site, saved)
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
    buckets[bucket] = frame
    counters[0] = frame + 1
    return frame


@njit(**_OPTIONS)
def rehash_frames(frames, buckets, many):  # type: ignore[no-untyped-def]
    """Lay the hash chains of frames [1, many) into fresh `buckets` (int64 [power of two], filled with -1)."""
    for frame in range(1, many):
        bucket = _bucket(buckets, frames[frame, PARENT], frames[frame, SITE], frames[frame, SAVED])
        frames[frame, NEXT] = buckets[bucket]
        buckets[bucket] = frame


@njit(**_OPTIONS)
def arrive(ops, guards, returns, states, frames, buckets, counters, state, register, frame):  # type: ignore[no-untyped-def]
    """Follow everything that happens on entering `state` without consuming a byte: guards, counting, calls, returns.

    Returns the configuration at the next state that consumes a byte (or ACCEPT), or DEAD / FRAMES_FULL as its state.
    """
    for _ in range(SILENT_MOVES):
        op = states[state, OP]
        if op == 0:
            return state, register, frame
        start = ops[op, GUARD_START]
        end = ops[op, GUARD_END]
        if end > start:
            # Binary search for the last interval that begins at or before the register.
            low = start
            high = end
            while low < high:
                middle = (low + high) >> 1
                if guards[middle, 0] <= register:
                    low = middle + 1
                else:
                    high = middle
            if low == start or guards[low - 1, 1] < register:
                return np.int64(DEAD), register, frame
        action = ops[op, ACTION]
        if action == INCREMENT:
            if register < ops[op, VALUE]:
                register += 1
        elif action == ASSIGN:
            register = np.int64(ops[op, VALUE])
        move = ops[op, MOVE]
        if move == STAY:
            return state, register, frame
        if move == CALL:
            pushed = push_frame(frames, buckets, counters, frame, np.int64(ops[op, SITE_BASE]), register)
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


@njit(**_OPTIONS)
def step(states, table, ops, guards, returns, frames, buckets, counters, state, register, frame, byte):  # type: ignore[no-untyped-def]
    """The configuration after `byte`; its state is DEAD when it is forbidden, FRAMES_FULL when it must be redone."""
    for _ in range(SILENT_MOVES):
        if states[state, LIT] == byte:
            target = state + 1
        else:
            row = states[state, ROW]
            target = np.int64(table[row, byte]) if row >= 0 else np.int64(DEAD)
        if target >= 0:
            return arrive(ops, guards, returns, states, frames, buckets, counters, target, register, frame)
        # A value that is not self-delimiting (a number, white space) ends where its next byte belongs to the caller.
        label = states[state, EXIT]
        if label < 0 or frame == 0:
            return np.int64(DEAD), register, frame
        state = np.int64(returns[frames[frame, SITE] + label])
        register = frames[frame, SAVED]
        frame = frames[frame, PARENT]
        if state < 0:
            return np.int64(DEAD), register, frame
        state, register, frame = arrive(ops, guards, returns, states, frames, buckets, counters, state, register, frame)
        if state < 0:
            return state, register, frame
    return np.int64(DEAD), register, frame


@njit(**_OPTIONS)
def may_end(states, ops, guards, returns, frames, buckets, counters, state, register, frame):  # type: ignore[no-untyped-def]
    """1 when the text may stop here, 0 when it may not, FRAMES_FULL when it must be asked again."""
    for _ in range(SILENT_MOVES):
        if state == ACCEPT:
            return np.int64(1)
        label = states[state, EXIT]
        if label < 0:
            return np.int64(0)
        if frame == 0:
            return np.int64(1)
        state = np.int64(returns[frames[frame, SITE] + label])
        register = frames[frame, SAVED]
        frame = frames[frame, PARENT]
        if state < 0:
            return np.int64(0)
        state, register, frame = arrive(ops, guards, returns, states, frames, buckets, counters, state, register, frame)
        if state < 0:
            return state if state == FRAMES_FULL else np.int64(0)
    return np.int64(0)


@njit(**_OPTIONS)
def advance(states, table, ops, guards, returns, frames, buckets, counters, configuration, data, start, end):  # type: ignore[no-untyped-def]
    """Feed data[start:end] to `configuration` (int64 [3]), in place. Returns 0, DEAD or FRAMES_FULL."""
    state = configuration[0]
    register = configuration[1]
    frame = configuration[2]
    for i in range(start, end):
        state, register, frame = step(
            states, table, ops, guards, returns, frames, buckets, counters, state, register, frame, data[i]
        )
        if state < 0:
            return state
    configuration[0] = state
    configuration[1] = register
    configuration[2] = frame
    return np.int64(0)


@njit(**_OPTIONS)
def walk_tree(states, table, ops, guards, returns, frames, buckets, counters, tree, first, last, path, mask, same):  # type: ignore[no-untyped-def]
    """Set the bits of every token in the preorder prefix tree nodes [first, last) that the machine can read.

    `path` (int64 [depth + 2, 3]) holds the configuration at each depth; path[0] is where the walk starts. `same` chains
    tokens with equal bytes. Returns 0 or FRAMES_FULL.
    """
    i = first
    while i < last:
        depth = tree[i, DEPTH]
        state, register, frame = step(
            states,
            table,
            ops,
            guards,
            returns,
            frames,
            buckets,
            counters,
            path[depth, 0],
            path[depth, 1],
            path[depth, 2],
            tree[i, BYTE],
        )
        if state < 0:
            if state == FRAMES_FULL:
                return state
            i = np.int64(tree[i, END])
            continue
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        token = tree[i, TOKEN]
        while token >= 0:
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
            token = same[token]
        i += 1
    return np.int64(0)


@njit(**_OPTIONS)
def walk_tails(  # type: ignore[no-untyped-def]
    states,
    table,
    ops,
    guards,
    returns,
    frames,
    buckets,
    counters,
    tails,
    spans,
    tokens,
    lengths,
    path,
    shortest,
    longest,
    mask,
):
    """The same over the tails that follow a closing quote: node i stands for tokens[spans[i] : spans[i + 1]].

    Each of these tokens is a run of `lengths` string characters, the quote, and the tail; only those whose run has
    between `shortest` and `longest` characters are allowed. path[0] is the configuration after the quote; node 0 is the
    empty tail. Returns 0 or FRAMES_FULL.
    """
    i = np.int64(0)
    last = tails.shape[0]
    while i < last:
        depth = tails[i, DEPTH]
        if i > 0:
            state, register, frame = step(
                states,
                table,
                ops,
                guards,
                returns,
                frames,
                buckets,
                counters,
                path[depth - 1, 0],
                path[depth - 1, 1],
                path[depth - 1, 2],
                tails[i, BYTE],
            )
            if state < 0:
                if state == FRAMES_FULL:
                    return state
                i = np.int64(tails[i, END])
                continue
            path[depth, 0] = state
            path[depth, 1] = register
            path[depth, 2] = frame
        for j in range(spans[i], spans[i + 1]):
            if shortest <= lengths[j] <= longest:
                token = tokens[j]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        i += 1
    return np.int64(0)


@njit(**_OPTIONS)
def fill_row(  # type: ignore[no-untyped-def]
    states,
    table,
    ops,
    guards,
    returns,
    loops,
    frames,
    buckets,
    counters,
    tree,
    same,
    body,
    tails,
    spans,
    tail_tokens,
    tail_lengths,
    any_mask,
    any_rest,
    unescaped_mask,
    unescaped_rest,
    longest_run,
    path,
    configuration,
    mask,
):
    """Fill `mask` (uint32 [words], zeroed here) with the tokens that `configuration` allows, end tokens excluded.

    Inside a free JSON string (`LOOP`), the tokens that stay inside it are a precomputed row per number of characters
    (`body`, uint32 [longest + 1, words]) and those that close it are walked by what follows the quote. A state with a
    LOOP_BASE is like that base state but for the texts it tells apart (declared property names among free ones): its
    row is that of the base, corrected by a walk of only what differs. A state that tolerates all characters has a
    precomputed row, too, to which a walk of the few other tokens adds. Everywhere else the whole tree is walked.
    Returns 0 or FRAMES_FULL.
    """
    state = configuration[0]
    register = configuration[1]
    frame = configuration[2]
    loop = states[state, LOOP]
    base = state
    if loop > 0 and loops[loop, LOOP_BASE] >= 0:
        # Where free texts are forbidden just now, little is allowed, and the plain walk is short.
        base, _, _ = arrive(
            ops,
            guards,
            returns,
            states,
            frames,
            buckets,
            counters,
            np.int64(loops[loop, LOOP_BASE]),
            register,
            frame,
        )
        if base == FRAMES_FULL:
            return base
        if base < 0:
            loop = 0
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    if loop > 0 and loops[loop, LOOP_BASE] <= TOLERATES_ANY:
        # Near the bounds of a length, or where a guard forbids it, tolerance ends.
        fits = loops[loop, LOOP_MAXIMUM] < 0 or register + longest_run <= loops[loop, LOOP_MAXIMUM]
        if fits and register >= loops[loop, LOOP_MINIMUM]:
            rest = any_rest if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_rest
            mask[:] = any_mask if loops[loop, LOOP_BASE] == TOLERATES_ANY else unescaped_mask
            return walk_tree(
                states,
                table,
                ops,
                guards,
                returns,
                frames,
                buckets,
                counters,
                rest,
                0,
                rest.shape[0],
                path,
                mask,
                same,
            )
        loop = 0
    if loop == 0:
        mask[:] = 0
        return walk_tree(
            states,
            table,
            ops,
            guards,
            returns,
            frames,
            buckets,
            counters,
            tree,
            0,
            tree.shape[0],
            path,
            mask,
            same,
        )
    minimum = np.int64(loops[loop, LOOP_MINIMUM])
    maximum = np.int64(loops[loop, LOOP_MAXIMUM])
    longest = np.int64(body.shape[0] - 1)
    # With no maximum every run fits; the register then saturates at the minimum. A register beyond the maximum can
    # only come from a hostile table.
    room = max(maximum - register, np.int64(0)) if maximum >= 0 else longest
    mask[:] = body[min(room, longest)]
    quoted, register_after, frame_after = step(
        states,
        table,
        ops,
        guards,
        returns,
        frames,
        buckets,
        counters,
        base,
        max(register, minimum),
        frame,
        np.uint8(34),
    )
    if quoted == FRAMES_FULL:
        return quoted
    if quoted >= 0:
        path[0, 0] = quoted
        path[0, 1] = register_after
        path[0, 2] = frame_after
        status = walk_tails(
            states,
            table,
            ops,
            guards,
            returns,
            frames,
            buckets,
            counters,
            tails,
            spans,
            tail_tokens,
            tail_lengths,
            path,
            minimum - register,
            room if maximum >= 0 else np.int64(1 << 30),
            mask,
        )
        if status < 0:
            return status
    if base == state:
        return np.int64(0)
    path[0, 0] = state
    path[0, 1] = register
    path[0, 2] = frame
    return correct_row(
        states, table, ops, guards, returns, loops, frames, buckets, counters, tree, path, base, mask, same
    )


@njit(**_OPTIONS)
def correct_row(  # type: ignore[no-untyped-def]
    states, table, ops, guards, returns, loops, frames, buckets, counters, tree, path, base, mask, same
):
    """Walk the tree only as long as the text read might still differ from what `base` makes of it, and set or clear.

    A subtree is left as it is as soon as the walk reaches a plain loop state: from there on both behave alike.
    """
    i = np.int64(0)
    last = tree.shape[0]
    while i < last:
        depth = tree[i, DEPTH]
        state, register, frame = step(
            states,
            table,
            ops,
            guards,
            returns,
            frames,
            buckets,
            counters,
            path[depth, 0],
            path[depth, 1],
            path[depth, 2],
            tree[i, BYTE],
        )
        if state == FRAMES_FULL:
            return state
        end = np.int64(tree[i, END])
        if state < 0:
            for j in range(i, end):
                token = tree[j, TOKEN]
                while token >= 0:
                    mask[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
                    token = same[token]
            i = end
            continue
        loop = states[state, LOOP]
        if loop > 0 and loops[loop, LOOP_BASE] == DEAD and frame == path[0, 2]:
            i = end
            continue
        path[depth + 1, 0] = state
        path[depth + 1, 1] = register
        path[depth + 1, 2] = frame
        token = tree[i, TOKEN]
        while token >= 0:
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
            token = same[token]
        i += 1
    return np.int64(0)


@njit(**_OPTIONS)
def summarize_row(mask):  # type: ignore[no-untyped-def]
    """(number of set bits, the lowest set bit or -1, a 64-bit hash) of a mask row, in one pass."""
    count = 0
    lowest = -1
    digest = np.uint64(0xCBF29CE484222325)
    for word in range(mask.shape[0]):
        bits = mask[word]
        digest = (digest ^ np.uint64(bits)) * np.uint64(0x100000001B3)
        digest ^= digest >> np.uint64(31)
        if bits:
            if lowest < 0:
                position = 0
                while (bits >> np.uint32(position)) & np.uint32(1) == 0:
                    position += 1
                lowest = word * 32 + position
            while bits:
                bits &= bits - np.uint32(1)
                count += 1
    return count, lowest, digest


@njit(**_OPTIONS)
def successors(  # type: ignore[no-untyped-def]
    states, table, ops, guards, returns, frames, buckets, counters, configuration, mask, offsets, data, found, seen
):
    """Distinct configurations reached from `configuration` by the tokens of `mask`, into `found` (int64 [capacity, 3]).

    `seen` (int32 [power of two], filled with -1) is the hash table that removes repeats. Returns how many were found,
    FRAMES_FULL, or -3 when `found` is full.
    """
    many = np.int64(0)
    for word in range(mask.shape[0]):
        bits = mask[word]
        position = 0
        while bits:
            if bits & np.uint32(1):
                token = word * 32 + position
                state = configuration[0]
                register = configuration[1]
                frame = configuration[2]
                for i in range(offsets[token], offsets[token + 1]):
                    state, register, frame = step(
                        states, table, ops, guards, returns, frames, buckets, counters, state, register, frame, data[i]
                    )
                    if state < 0:
                        break
                if state == FRAMES_FULL:
                    return state
                if state >= 0:
                    slot = _bucket(seen, state, register, frame)
                    while seen[slot] >= 0:
                        other = seen[slot]
                        if found[other, 0] == state and found[other, 1] == register and found[other, 2] == frame:
                            break
                        slot = (slot + 1) & (seen.shape[0] - 1)
                    if seen[slot] < 0:
                        if many >= found.shape[0]:
                            return np.int64(-3)
                        found[many, 0] = state
                        found[many, 1] = register
                        found[many, 2] = frame
                        seen[slot] = many
                        many += 1
            bits >>= np.uint32(1)
            position += 1
    return many
