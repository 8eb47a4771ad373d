"""All arrays of a recogniser behind one argument.

numba checks, unpacks and counts references for each array that it is passed, 65 ns each. Reading a token takes fifteen
of them and less time than that. So a recogniser notes where its arrays lie in one array of int64, two numbers for each:
address and length. Kernels called from Python take that, and hand on tuples made of it. Whoever writes an entry keeps
the array alive for as long as the entry stands.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from grammar_workers.matching.kernels.mask_classes import CLASS_COLUMNS, ClassTables
from grammar_workers.matching.kernels.step import FRAME_COLUMNS, Stack
from grammar_workers.matching.kernels.trie_walks import PATH_COLUMNS
from grammar_workers.numba_options import OPTIONS
from grammar_workers.pushdown.instructions import (
    GUARD_COLUMNS,
    INSTRUCTION_COLUMNS,
    LOOP_COLUMNS,
    STATE_COLUMNS,
    Tables,
)
from grammar_workers.vocabulary.slices import Runs, StringSlice, Tolerance
from grammar_workers.vocabulary.trie import TRIE_COLUMNS, Trees
from grammar_workers.vocabulary.vocabulary import Vocabulary

_ADDRESS, _LENGTH, _COLUMNS = range(3)
# A row for each array, in the order of the fields of the tuples below.
(
    _STATES,
    _DENSE_ROWS,
    _INSTRUCTIONS,
    _GUARDS,
    _RETURNS,
    _LOOPS,
    _FRAMES,
    _FRAME_BUCKETS,
    _FRAMES_USED,
    _TRACE,
    _CLASSES,
    _CLASS_BUCKETS,
    _CLASSES_USED,
    _BODY,
    _TAILS,
    _TAIL_SPANS,
    _TAIL_TOKENS,
    _RUN_LENGTHS,
    _ANY_MASK,
    _ANY_REST,
    _UNESCAPED_MASK,
    _UNESCAPED_REST,
    _TREE,
    _SAME_BYTES,
    _FAN_OF,
    _FANS,
    _STAYING,
    _TEXT,
    _TEXT_OFFSETS,
    _PATH,
    _ENTRIES,
) = range(31)
# Where the rows of a tuple begin.
TABLES, STACK, CLASSES, PATH = _STATES, _FRAMES, _CLASSES, _PATH


def note_arrays(entries: NDArray[np.int64], place: int, arrays: Iterable[NDArray[Any]]) -> None:
    """Write the rows of `arrays`, C-contiguous and of the types below, from `place` on."""
    for number, array in enumerate(arrays, place):
        entries[number, _ADDRESS] = array.__array_interface__["data"][0]
        entries[number, _LENGTH] = len(array)


_entries_of: weakref.WeakKeyDictionary[Vocabulary, NDArray[np.int64]] = weakref.WeakKeyDictionary()


def entries_of(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Fresh entries, int64 [arrays, 2], with the rows of the vocabulary: what all its recognisers have in common."""
    known = _entries_of.get(vocabulary)
    if known is None:
        known = np.zeros((_ENTRIES, _COLUMNS), np.int64)
        runs, any_character, any_but_escaped = vocabulary.string_slice
        note_arrays(known, _BODY, (*runs, *any_character, *any_but_escaped))
        note_arrays(known, _TREE, vocabulary.trees)
        note_arrays(known, _TEXT, vocabulary.packed)
        _entries_of[vocabulary] = known
    return known.copy()


@intrinsic
def _address_as_pointer(typing_context, address):  # type: ignore[no-untyped-def]
    """An address (int64) as the pointer that `carray` takes."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


# Called from kernels without the typing context.
_pointer: Any = _address_as_pointer


@njit(inline="always", **OPTIONS)
def tables_of(entries):  # type: ignore[no-untyped-def]
    """`PushdownAutomaton.tables`."""
    return Tables(
        carray(_pointer(entries[_STATES, _ADDRESS]), (entries[_STATES, _LENGTH], STATE_COLUMNS), np.int32),
        carray(_pointer(entries[_DENSE_ROWS, _ADDRESS]), (entries[_DENSE_ROWS, _LENGTH], 256), np.int32),
        carray(
            _pointer(entries[_INSTRUCTIONS, _ADDRESS]), (entries[_INSTRUCTIONS, _LENGTH], INSTRUCTION_COLUMNS), np.int32
        ),
        carray(_pointer(entries[_GUARDS, _ADDRESS]), (entries[_GUARDS, _LENGTH], GUARD_COLUMNS), np.int32),
        carray(_pointer(entries[_RETURNS, _ADDRESS]), (entries[_RETURNS, _LENGTH],), np.int32),
        carray(_pointer(entries[_LOOPS, _ADDRESS]), (entries[_LOOPS, _LENGTH], LOOP_COLUMNS), np.int32),
    )


@njit(inline="always", **OPTIONS)
def stack_of(entries):  # type: ignore[no-untyped-def]
    """The return stacks and the trace."""
    return Stack(
        carray(_pointer(entries[_FRAMES, _ADDRESS]), (entries[_FRAMES, _LENGTH], FRAME_COLUMNS), np.int64),
        carray(_pointer(entries[_FRAME_BUCKETS, _ADDRESS]), (entries[_FRAME_BUCKETS, _LENGTH],), np.int64),
        carray(_pointer(entries[_FRAMES_USED, _ADDRESS]), (entries[_FRAMES_USED, _LENGTH],), np.int64),
        carray(_pointer(entries[_TRACE, _ADDRESS]), (entries[_TRACE, _LENGTH],), np.int64),
    )


@njit(inline="always", **OPTIONS)
def classes_of(entries):  # type: ignore[no-untyped-def]
    """`MaskClasses.tables`."""
    return ClassTables(
        carray(_pointer(entries[_CLASSES, _ADDRESS]), (entries[_CLASSES, _LENGTH], CLASS_COLUMNS), np.int64),
        carray(_pointer(entries[_CLASS_BUCKETS, _ADDRESS]), (entries[_CLASS_BUCKETS, _LENGTH],), np.int64),
        carray(_pointer(entries[_CLASSES_USED, _ADDRESS]), (entries[_CLASSES_USED, _LENGTH],), np.int64),
    )


@njit(inline="always", **OPTIONS)
def slices_of(entries):  # type: ignore[no-untyped-def]
    """`Vocabulary.string_slice`."""
    return StringSlice(
        Runs(
            carray(
                _pointer(entries[_BODY, _ADDRESS]), (entries[_BODY, _LENGTH], entries[_ANY_MASK, _LENGTH]), np.uint32
            ),
            carray(_pointer(entries[_TAILS, _ADDRESS]), (entries[_TAILS, _LENGTH], TRIE_COLUMNS), np.int32),
            carray(_pointer(entries[_TAIL_SPANS, _ADDRESS]), (entries[_TAIL_SPANS, _LENGTH],), np.int64),
            carray(_pointer(entries[_TAIL_TOKENS, _ADDRESS]), (entries[_TAIL_TOKENS, _LENGTH],), np.int32),
            carray(_pointer(entries[_RUN_LENGTHS, _ADDRESS]), (entries[_RUN_LENGTHS, _LENGTH],), np.int32),
        ),
        Tolerance(
            carray(_pointer(entries[_ANY_MASK, _ADDRESS]), (entries[_ANY_MASK, _LENGTH],), np.uint32),
            carray(_pointer(entries[_ANY_REST, _ADDRESS]), (entries[_ANY_REST, _LENGTH], TRIE_COLUMNS), np.int32),
        ),
        Tolerance(
            carray(_pointer(entries[_UNESCAPED_MASK, _ADDRESS]), (entries[_UNESCAPED_MASK, _LENGTH],), np.uint32),
            carray(
                _pointer(entries[_UNESCAPED_REST, _ADDRESS]),
                (entries[_UNESCAPED_REST, _LENGTH], TRIE_COLUMNS),
                np.int32,
            ),
        ),
    )


@njit(inline="always", **OPTIONS)
def trees_of(entries):  # type: ignore[no-untyped-def]
    """`Vocabulary.trees`."""
    return Trees(
        carray(_pointer(entries[_TREE, _ADDRESS]), (entries[_TREE, _LENGTH], TRIE_COLUMNS), np.int32),
        carray(_pointer(entries[_SAME_BYTES, _ADDRESS]), (entries[_SAME_BYTES, _LENGTH],), np.int32),
        carray(_pointer(entries[_FAN_OF, _ADDRESS]), (entries[_FAN_OF, _LENGTH],), np.int32),
        carray(_pointer(entries[_FANS, _ADDRESS]), (entries[_FANS, _LENGTH], 256), np.int32),
        carray(_pointer(entries[_STAYING, _ADDRESS]), (entries[_STAYING, _LENGTH],), np.uint8),
    )


@njit(inline="always", **OPTIONS)
def text_of(entries):  # type: ignore[no-untyped-def]
    """`Vocabulary.packed`."""
    return (
        carray(_pointer(entries[_TEXT, _ADDRESS]), (entries[_TEXT, _LENGTH],), np.uint8),
        carray(_pointer(entries[_TEXT_OFFSETS, _ADDRESS]), (entries[_TEXT_OFFSETS, _LENGTH],), np.int64),
    )


@njit(inline="always", **OPTIONS)
def path_of(entries):  # type: ignore[no-untyped-def]
    """Scratch space for walks, see `trie_walks`."""
    return carray(_pointer(entries[_PATH, _ADDRESS]), (entries[_PATH, _LENGTH], PATH_COLUMNS), np.int64)
