"""All arrays of a recogniser behind one argument.

numba checks, unpacks and counts references for each array that it is passed, 65 ns each. Reading a token takes fifteen
of them and less time than that. So a recogniser notes where its arrays lie in one array of int64, two numbers for each:
address and length. Kernels called from Python take that, and hand on tuples made of it. Whoever writes an entry keeps
the array alive for as long as the entry stands.
"""

from __future__ import annotations

import weakref
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
from grammar_workers.numba_options import OPTIONS
from grammar_workers.pushdown.instructions import (
    GUARD_COLUMNS,
    INSTRUCTION_COLUMNS,
    LOOP_COLUMNS,
    STATE_COLUMNS,
    Tables,
)
from grammar_workers.vocabulary.folded_trie import FOLDED_COLUMNS, FoldedTree
from grammar_workers.vocabulary.slices import Slice, StringSlices
from grammar_workers.vocabulary.trie import TRIE_COLUMNS, Trees
from grammar_workers.vocabulary.vocabulary import Vocabulary

_ADDRESS, _LENGTH, _COLUMNS = range(3)
# Where the rows of a tuple begin, one for each of its arrays in the order of its fields.
TABLES, STACK, CLASSES, PATH, FOLDED = 0, 6, 11, 14, 15
_SLICES, _TREES, _TEXT, _ENTRIES = 18, 28, 35, 37


class Arrays(NamedTuple):
    """What most kernels take."""

    tables: Tables
    """`PushdownAutomaton.tables`"""
    stack: Stack
    """The return stacks and the trace."""
    classes: ClassTables
    """`MaskClasses.tables`"""
    slices: StringSlices
    """`Vocabulary.string_slices`"""
    trees: Trees
    """`Vocabulary.trees`"""
    folded: FoldedTree
    """The tree for `mask.FOLDED_TREE`."""
    path: NDArray[np.int64]
    """Scratch space for walks, see `trie_walks`."""


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
        *strings, unfolded, any_character, any_but_escaped = vocabulary.string_slices
        note_arrays(known, _SLICES, (*strings, *unfolded, *any_character, *any_but_escaped))
        note_arrays(known, _TREES, vocabulary.trees)
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
def _line(entries, place, kind):  # type: ignore[no-untyped-def]
    """The array [length] in a row of the entries."""
    return carray(_pointer(entries[place, _ADDRESS]), (entries[place, _LENGTH],), kind)


@njit(inline="always", **OPTIONS)
def _table(entries, place, columns, kind):  # type: ignore[no-untyped-def]
    """The array [length, columns] in a row of the entries."""
    return carray(_pointer(entries[place, _ADDRESS]), (entries[place, _LENGTH], columns), kind)


@njit(inline="always", **OPTIONS)
def tables_of(entries):  # type: ignore[no-untyped-def]
    return Tables(
        _table(entries, TABLES, STATE_COLUMNS, np.int32),
        _table(entries, TABLES + 1, 256, np.int32),
        _table(entries, TABLES + 2, INSTRUCTION_COLUMNS, np.int32),
        _table(entries, TABLES + 3, GUARD_COLUMNS, np.int32),
        _line(entries, TABLES + 4, np.int32),
        _table(entries, TABLES + 5, LOOP_COLUMNS, np.int32),
    )


@njit(inline="always", **OPTIONS)
def stack_of(entries):  # type: ignore[no-untyped-def]
    return Stack(
        _table(entries, STACK, FRAME_COLUMNS, np.int64),
        _line(entries, STACK + 1, np.int64),
        _line(entries, STACK + 2, np.int64),
        _line(entries, STACK + 3, np.int64),
        _table(entries, STACK + 4, 2, np.int64),
    )


@njit(inline="always", **OPTIONS)
def classes_of(entries):  # type: ignore[no-untyped-def]
    return ClassTables(
        _table(entries, CLASSES, CLASS_COLUMNS, np.int64),
        _line(entries, CLASSES + 1, np.int64),
        _line(entries, CLASSES + 2, np.int64),
    )


@njit(inline="always", **OPTIONS)
def trees_of(entries):  # type: ignore[no-untyped-def]
    return Trees(
        _table(entries, _TREES, TRIE_COLUMNS, np.int32),
        _line(entries, _TREES + 1, np.int32),
        _line(entries, _TREES + 2, np.int32),
        _table(entries, _TREES + 3, 256, np.int32),
        _line(entries, _TREES + 4, np.uint8),
        _line(entries, _TREES + 5, np.int64),
        _line(entries, _TREES + 6, np.int32),
    )


@njit(inline="always", **OPTIONS)
def path_of(entries):  # type: ignore[no-untyped-def]
    return _table(entries, PATH, PATH_COLUMNS, np.int64)


@njit(inline="always", **OPTIONS)
def arrays_of(entries):  # type: ignore[no-untyped-def]
    plain = _line(entries, _SLICES + 4, np.uint32)
    return Arrays(
        tables_of(entries),
        stack_of(entries),
        classes_of(entries),
        StringSlices(
            _table(entries, _SLICES, plain.shape[0], np.uint32),
            _table(entries, _SLICES + 1, TRIE_COLUMNS, np.int32),
            _table(entries, _SLICES + 2, TRIE_COLUMNS, np.int32),
            _line(entries, _SLICES + 3, np.int32),
            Slice(plain, _table(entries, _SLICES + 5, TRIE_COLUMNS, np.int32)),
            Slice(_line(entries, _SLICES + 6, np.uint32), _table(entries, _SLICES + 7, TRIE_COLUMNS, np.int32)),
            Slice(_line(entries, _SLICES + 8, np.uint32), _table(entries, _SLICES + 9, TRIE_COLUMNS, np.int32)),
        ),
        trees_of(entries),
        FoldedTree(
            _table(entries, FOLDED, FOLDED_COLUMNS, np.int32),
            _line(entries, FOLDED + 1, np.int64),
            _line(entries, FOLDED + 2, np.int32),
        ),
        path_of(entries),
    )


@njit(inline="always", **OPTIONS)
def text_of(entries):  # type: ignore[no-untyped-def]
    """`Vocabulary.packed`."""
    return _line(entries, _TEXT, np.uint8), _line(entries, _TEXT + 1, np.int64)
