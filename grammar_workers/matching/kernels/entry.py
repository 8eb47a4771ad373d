"""The kernels that Python calls for each token and mask. They take all arrays of a recognizer as one argument.

This argument is `entries` (see `arrays`). Each kernel builds named tuples of arrays from `entries`. Most kernels then
call the kernel of the same name in `step`, `mask_classes` or `mask`. The kernels `prefetch.look_ahead` and
`transitions.pushdown_targets` take `entries`, too.

A configuration is (state, counter, frame), see `step`. A negative number in place of a state or another result is an
error:

- `step.DEAD` (-1): The byte or token is not allowed.
- `step.FRAMES_FULL` (-2): The frame table (all stack frames) is full. Enlarge it and repeat the call.
- `transitions.FOUND_FULL` (-3): The array `found` is full. Repeat the call with a larger array.
- `mask.WIDE` (-4): The walk for a mask would be long. Choose the prefix tree and repeat the call.
- `mask.CLASSES_FULL` (-5): The class table is full. Enlarge it and repeat the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import int64, njit, uint32

from grammar_workers.matching.kernels import mask as mask_kernels
from grammar_workers.matching.kernels import mask_classes, step
from grammar_workers.matching.kernels.arrays import arrays_of, class_tables_of, stack_of, tables_of, text_of
from grammar_workers.numba_options import OPTIONS, called_with
from grammar_workers.pushdown.instructions import DEAD


def _entry(*arguments: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a kernel whose arguments are `entries` and then these types."""

    def compiled(function: Any) -> Any:
        return called_with(int64[:, ::1], *arguments)(njit(**OPTIONS)(function))

    return compiled


@_entry(int64, int64, int64)
def arrive(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    """Enter a state: run its instruction and the instructions of the next states, up to a state that reads a byte.

    An instruction may test the counter (guard), change the counter, call a rule, return from a rule, or jump.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.

    Returns:
        The configuration (state, counter, frame) that is reached. The state is DEAD if a guard fails or a caller has no
        state for a return. It is FRAMES_FULL if the frame table is full.
    """
    return step.arrive(tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64, int64)
def leave(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return from the rule of a configuration to its caller, if the rule may end there without a delimiter.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.

    Returns:
        The configuration (state, counter, frame) in which the caller continues. The state is DEAD if the rule cannot
        end there, FRAMES_FULL if the frame table is full.
    """
    return step.leave(tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64, int64, int64)
def step_noting(entries, state, counter, frame, byte):  # type: ignore[no-untyped-def]
    """Advance a configuration by one byte, and record calls and returns of rules in `step.Stack.events`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.
        byte: The byte, 0 to 255.

    Returns:
        Four numbers: state, counter and frame after the byte, and the number of recorded events. The state is DEAD if
        the byte is not allowed, FRAMES_FULL if the frame table is full. The events begin at row 1 of `events`. If their
        number is EVENTS - 1 (4095), some may be missing.
    """
    stack = stack_of(entries)
    stack.events[0, 0] = 0
    state, counter, frame = step.step(tables_of(entries), stack, state, counter, frame, byte)
    many = stack.events[0, 0]
    stack.events[0, 0] = -1
    return state, counter, frame, many


@_entry(int64, int64, int64)
def may_end(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return whether the output may end in a configuration.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.

    Returns:
        1 if the output may end, 0 if not, FRAMES_FULL if the frame table is full.
    """
    return step.may_end(tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64, int64)
def find_class(entries, state, counter, frame):  # type: ignore[no-untyped-def]
    """Return the mask equivalence class of a configuration. All configurations of a class have equal masks.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.

    Returns:
        The number of the class. -1 if the table has no class of this configuration.
    """
    return mask_classes.find_class(class_tables_of(entries), stack_of(entries), state, counter, frame)


@_entry(int64, int64)
def note_class(entries, state, frame):  # type: ignore[no-untyped-def]
    """Add a mask equivalence class (set of configurations with equal masks) for the mask that was computed last.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2]. The class table is changed; it
            must have room for one more class.
        state: State of the configuration that has this mask.
        frame: Frame (top of the return stack) of the configuration that has this mask.

    Returns:
        The number of the new class. -1 if the mask depends on more stack frames than a class can record (11).
    """
    return mask_classes.note_class(class_tables_of(entries), stack_of(entries), state, frame)


@_entry(int64, int64, int64, int64)
def advance(entries, token, state, counter, frame):  # type: ignore[no-untyped-def]
    """Advance a configuration by a token of the vocabulary.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        token: ID of the token.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.

    Returns:
        Five numbers:

        - State, counter and frame after the token. The state is DEAD if the token is not allowed or has no bytes,
          FRAMES_FULL if the frame table is full.
        - 1 if the output may end there, 0 if not, FRAMES_FULL if the frame table is full.
        - The mask equivalence class of the new configuration; -1 if the table has none.
    """
    tables, stack = tables_of(entries), stack_of(entries)
    text, offsets = text_of(entries)
    if offsets[token] == offsets[token + 1]:
        return np.int64(DEAD), counter, frame, np.int64(0), np.int64(-1)
    for i in range(offsets[token], offsets[token + 1]):
        state, counter, frame = step.step(tables, stack, state, counter, frame, text[i])
        if state < 0:
            return state, counter, frame, np.int64(0), np.int64(-1)
    ends = step.may_end(tables, stack, state, counter, frame)
    return state, counter, frame, ends, mask_classes.find_class(class_tables_of(entries), stack, state, counter, frame)


@_entry(int64, int64, int64, int64, uint32[::1], int64)
def find_or_fill_mask(entries, noting, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    """Find the mask equivalence class (configurations with equal masks) of a configuration, or compute its mask.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        noting: 1: if the table has no class of the configuration, add one. 0: only compute the mask.
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.
        mask: Receives the mask without end tokens, uint32 [words]. Unchanged if the table already has the class.
        walked: Prefix tree to walk: `mask.WHOLE_TREE` (of all tokens), `mask.TREE_IF_SHORT` (the same tree, unless the
            walk is long) or `mask.FOLDED_TREE` (equivalent bytes share an edge).

    Returns:
        The number of the class, old or new. -1 if the configuration has none. Errors: CLASSES_FULL (the class table is
        full), FRAMES_FULL (the frame table is full) and WIDE (only for TREE_IF_SHORT: the walk is long).
    """
    return mask_kernels.find_or_fill_mask(arrays_of(entries), noting, state, counter, frame, mask, walked)


@_entry(int64, int64, int64, uint32[::1], int64)
def fill_mask(entries, state, counter, frame, mask, walked):  # type: ignore[no-untyped-def]
    """Compute the mask (bit set of allowed tokens) of a configuration.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2].
        state: State of the configuration, an index into the automaton's states.
        counter: Counter of the configuration.
        frame: Frame of the configuration: the top of its return stack, an index into the frame table; 0: empty stack.
        mask: Receives the mask without end tokens, uint32 [words].
        walked: Prefix tree to walk: `mask.WHOLE_TREE` (of all tokens), `mask.TREE_IF_SHORT` (the same tree, unless the
            walk is long) or `mask.FOLDED_TREE` (equivalent bytes share an edge).

    Returns:
        0 if the mask was computed. Errors: FRAMES_FULL (the frame table is full) and WIDE (only for TREE_IF_SHORT: the
        walk is long).
    """
    return mask_kernels.fill_mask(arrays_of(entries), state, counter, frame, mask, walked)
