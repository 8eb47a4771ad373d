"""Transfer of all arrays of a recognizer to kernels (functions compiled by numba) as one argument.

Each array argument costs 65 ns, because numba checks and unpacks it and counts a reference. Advancing by a token needs
15 arrays, and takes less time than passing them. So a recognizer stores the addresses and lengths of its arrays in one
int64 array, `entries`. Kernels that Python calls take `entries`, and build the named tuples of arrays from it.

`entries` holds raw addresses. The code that writes an entry must keep the array alive as long as the entry is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from grammar_workers.matching.kernels.mask_classes import CLASS_COLUMNS, ClassTables
from grammar_workers.matching.kernels.step import FRAME_COLUMNS, Stack
from grammar_workers.matching.kernels.trie_walks import PATH_COLUMNS
from grammar_workers.memo import memoized
from grammar_workers.numba_options import OPTIONS
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.instructions import Tables
from grammar_workers.vocabulary.folded_trie import FOLDED_COLUMNS, FoldedTree
from grammar_workers.vocabulary.slices import Slice, StringSlices
from grammar_workers.vocabulary.trie import TRIE_COLUMNS, Trees
from grammar_workers.vocabulary.vocabulary import Vocabulary

_ADDRESS, _LENGTH, _COLUMNS = range(3)
# Index of the first entry of each named tuple. Its arrays have consecutive entries, in the order of the fields.
TABLES, STACK, CLASSES, PATH, FOLDED = 0, 6, 11, 14, 15
_SLICES, _TREES, _TEXT, _ENTRIES = 18, 28, 35, 37


class Arrays(NamedTuple):
    """All arrays of a recognizer (automaton that reads tokens). Most kernels take them as one argument.

    Attributes:
        tables: `PushdownAutomaton.tables`: the transitions and instructions of the automaton.
        stack: All return stacks, and the trace (the stack frames and counters on which the current mask depends), see
            `step.Stack`.
        classes: `MaskClasses.tables`: the mask equivalence classes.
        slices: `Vocabulary.string_slices`: precomputed masks of tokens inside strings.
        trees: `Vocabulary.trees`: the prefix tree of all tokens.
        folded: The folded tree: a prefix tree in which equivalent bytes share an edge. Mask kernels walk it if their
            argument `walked` is `mask.FOLDED_TREE`.
        path: Scratch space for walks of prefix trees, int64 [depth + 3, PATH_COLUMNS]: a configuration for each depth.
    """

    tables: Tables
    stack: Stack
    classes: ClassTables
    slices: StringSlices
    trees: Trees
    folded: FoldedTree
    path: NDArray[np.int64]


def note_arrays(entries: NDArray[np.int64], place: int, arrays: Iterable[NDArray[Any]]) -> None:
    """Write the addresses and lengths of arrays into `entries`, the array from which kernels read them.

    Args:
        entries: Addresses and lengths of arrays, int64 [arrays, 2], changed in place.
        place: Row of `entries` for the first array: TABLES, STACK, CLASSES, PATH or FOLDED. The other arrays follow in
            the next rows.
        arrays: The arrays of one named tuple in the order of its fields, C-contiguous. The caller must keep them alive.
    """
    for number, array in enumerate(arrays, place):
        entries[number, _ADDRESS] = array.__array_interface__["data"][0]
        entries[number, _LENGTH] = len(array)


@memoized
def entries_of(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return an array of addresses (see the module) with the vocabulary's arrays filled in.

    Args:
        vocabulary: The vocabulary. The addresses are valid as long as it exists.

    Returns:
        int64 [arrays, 2]: the address and the length of each array. The rows of the recognizer's own arrays are 0. A
        recognizer fills them in, in a copy, with `note_arrays`.
    """
    entries = np.zeros((_ENTRIES, _COLUMNS), np.int64)
    *strings, unfolded, any_character, any_but_escaped = vocabulary.string_slices
    note_arrays(entries, _SLICES, (*strings, *unfolded, *any_character, *any_but_escaped))
    note_arrays(entries, _TREES, vocabulary.trees)
    note_arrays(entries, _TEXT, vocabulary.packed)
    return entries


@intrinsic
def _address_as_pointer(typing_context, address):  # type: ignore[no-untyped-def]
    """Convert an address (int64) to the pointer that `carray` takes."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


# Kernels call the intrinsic without the typing context, which type checkers do not understand.
_pointer: Any = _address_as_pointer


@njit(inline="always", **OPTIONS)
def _line(entries, place, kind):  # type: ignore[no-untyped-def]
    """Return the array [length] of an entry."""
    return carray(_pointer(entries[place, _ADDRESS]), (entries[place, _LENGTH],), kind)


@njit(inline="always", **OPTIONS)
def _table(entries, place, columns, kind):  # type: ignore[no-untyped-def]
    """Return the array [length, columns] of an entry."""
    return carray(_pointer(entries[place, _ADDRESS]), (entries[place, _LENGTH], columns), kind)


@njit(inline="always", **OPTIONS)
def tables_of(entries):  # type: ignore[no-untyped-def]
    """Return the tables of the automaton, built from the addresses in `entries`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2]. They are not checked.

    Returns:
        A `Tables` whose arrays are views of the memory at these addresses.
    """
    return Tables(
        _table(entries, TABLES, code.STATE_COLUMNS, np.int32),
        _table(entries, TABLES + 1, 256, np.int32),
        _table(entries, TABLES + 2, code.INSTRUCTION_COLUMNS, np.int32),
        _table(entries, TABLES + 3, code.GUARD_COLUMNS, np.int32),
        _line(entries, TABLES + 4, np.int32),
        _table(entries, TABLES + 5, code.LOOP_COLUMNS, np.int32),
    )


@njit(inline="always", **OPTIONS)
def stack_of(entries):  # type: ignore[no-untyped-def]
    """Return the `Stack` (return stacks and trace) as views of the memory at the addresses in `entries`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2]. They are not checked.
    """
    return Stack(
        _table(entries, STACK, FRAME_COLUMNS, np.int64),
        _line(entries, STACK + 1, np.int64),
        _line(entries, STACK + 2, np.int64),
        _line(entries, STACK + 3, np.int64),
        _table(entries, STACK + 4, 2, np.int64),
    )


@njit(inline="always", **OPTIONS)
def class_tables_of(entries):  # type: ignore[no-untyped-def]
    """Return the `ClassTables` (mask equivalence classes) as views of the memory at the addresses in `entries`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2]. They are not checked.
    """
    return ClassTables(
        _table(entries, CLASSES, CLASS_COLUMNS, np.int64),
        _line(entries, CLASSES + 1, np.int64),
        _line(entries, CLASSES + 2, np.int64),
    )


@njit(inline="always", **OPTIONS)
def arrays_of(entries):  # type: ignore[no-untyped-def]
    """Return all arrays of a recognizer as views of the memory at the addresses in `entries`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2]. They are not checked.

    Returns:
        An `Arrays`. It is valid as long as the arrays at the addresses exist.
    """
    plain = _line(entries, _SLICES + 4, np.uint32)
    return Arrays(
        tables_of(entries),
        stack_of(entries),
        class_tables_of(entries),
        StringSlices(
            _table(entries, _SLICES, plain.shape[0], np.uint32),
            _table(entries, _SLICES + 1, TRIE_COLUMNS, np.int32),
            _table(entries, _SLICES + 2, TRIE_COLUMNS, np.int32),
            _line(entries, _SLICES + 3, np.int32),
            Slice(plain, _table(entries, _SLICES + 5, TRIE_COLUMNS, np.int32)),
            Slice(_line(entries, _SLICES + 6, np.uint32), _table(entries, _SLICES + 7, TRIE_COLUMNS, np.int32)),
            Slice(_line(entries, _SLICES + 8, np.uint32), _table(entries, _SLICES + 9, TRIE_COLUMNS, np.int32)),
        ),
        Trees(
            _table(entries, _TREES, TRIE_COLUMNS, np.int32),
            _line(entries, _TREES + 1, np.int32),
            _line(entries, _TREES + 2, np.int32),
            _table(entries, _TREES + 3, 256, np.int32),
            _line(entries, _TREES + 4, np.uint8),
            _line(entries, _TREES + 5, np.int64),
            _line(entries, _TREES + 6, np.int32),
        ),
        FoldedTree(
            _table(entries, FOLDED, FOLDED_COLUMNS, np.int32),
            _line(entries, FOLDED + 1, np.int64),
            _line(entries, FOLDED + 2, np.int32),
        ),
        _table(entries, PATH, PATH_COLUMNS, np.int64),
    )


@njit(inline="always", **OPTIONS)
def text_of(entries):  # type: ignore[no-untyped-def]
    """Return the bytes of all tokens as views of the memory at the addresses in `entries`.

    Args:
        entries: Addresses and lengths of the recognizer's arrays, int64 [arrays, 2]. They are not checked.

    Returns:
        `Vocabulary.packed`: the bytes of all tokens, uint8; and the offset of each token in these bytes, int64 [V + 1].
    """
    return _line(entries, _TEXT, np.uint8), _line(entries, _TEXT + 1, np.int64)
