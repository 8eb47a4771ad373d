"""All arrays of a walker behind one argument.

numba checks, unpacks and counts references for each array that it is passed, 65 ns each. Reading a token takes fifteen
of them and less time than that. So a walker notes where its arrays lie in one array of int64, two numbers for each:
address and length. Kernels called from Python take that, and hand on tuples made of it. Whoever writes an entry keeps
the array alive for as long as the entry stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from grammar_workers.matching.kernels.mask_classes import CLASS_COLUMNS
from grammar_workers.matching.kernels.step import OPTIONS

# The places where the entries of these tuples begin, and how many entries there are.
TABLES, STACK, CLASSES, SLICES, TREES, TEXT, PATH, ENTRIES = 0, 6, 10, 13, 22, 27, 29, 30


def note_arrays(entries: NDArray[np.int64], place: int, arrays: Iterable[NDArray[Any]]) -> None:
    """Write the entries (int64 [ENTRIES, 2]) of `arrays`, C-contiguous and of the types below, from `place` on."""
    for number, array in enumerate(arrays, place):
        entries[number, 0] = array.__array_interface__["data"][0]
        entries[number, 1] = len(array)


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
    """`Machine.tables`."""
    return (
        carray(_pointer(entries[0, 0]), (entries[0, 1], 5), np.int32),
        carray(_pointer(entries[1, 0]), (entries[1, 1], 256), np.int32),
        carray(_pointer(entries[2, 0]), (entries[2, 1], 8), np.int32),
        carray(_pointer(entries[3, 0]), (entries[3, 1], 2), np.int32),
        carray(_pointer(entries[4, 0]), (entries[4, 1],), np.int32),
        carray(_pointer(entries[5, 0]), (entries[5, 1], 3), np.int32),
    )


@njit(inline="always", **OPTIONS)
def stack_of(entries):  # type: ignore[no-untyped-def]
    """The return stacks and the trace, see `kernels`."""
    return (
        carray(_pointer(entries[6, 0]), (entries[6, 1], 5), np.int64),
        carray(_pointer(entries[7, 0]), (entries[7, 1],), np.int64),
        carray(_pointer(entries[8, 0]), (entries[8, 1],), np.int64),
        carray(_pointer(entries[9, 0]), (entries[9, 1],), np.int64),
    )


@njit(inline="always", **OPTIONS)
def classes_of(entries):  # type: ignore[no-untyped-def]
    """`RowClasses.tables`."""
    return (
        carray(_pointer(entries[10, 0]), (entries[10, 1], CLASS_COLUMNS), np.int64),
        carray(_pointer(entries[11, 0]), (entries[11, 1],), np.int64),
        carray(_pointer(entries[12, 0]), (entries[12, 1],), np.int64),
    )


@njit(inline="always", **OPTIONS)
def slices_of(entries):  # type: ignore[no-untyped-def]
    """`StringSlice.tables`."""
    words = entries[18, 1]
    return (
        carray(_pointer(entries[13, 0]), (entries[13, 1], words), np.uint32),
        carray(_pointer(entries[14, 0]), (entries[14, 1], 4), np.int32),
        carray(_pointer(entries[15, 0]), (entries[15, 1],), np.int64),
        carray(_pointer(entries[16, 0]), (entries[16, 1],), np.int32),
        carray(_pointer(entries[17, 0]), (entries[17, 1],), np.int32),
        carray(_pointer(entries[18, 0]), (words,), np.uint32),
        carray(_pointer(entries[19, 0]), (entries[19, 1], 4), np.int32),
        carray(_pointer(entries[20, 0]), (words,), np.uint32),
        carray(_pointer(entries[21, 0]), (entries[21, 1], 4), np.int32),
    )


@njit(inline="always", **OPTIONS)
def trees_of(entries):  # type: ignore[no-untyped-def]
    """`Vocabulary.trees`."""
    return (
        carray(_pointer(entries[22, 0]), (entries[22, 1], 4), np.int32),
        carray(_pointer(entries[23, 0]), (entries[23, 1],), np.int32),
        carray(_pointer(entries[24, 0]), (entries[24, 1],), np.int32),
        carray(_pointer(entries[25, 0]), (entries[25, 1], 256), np.int32),
        carray(_pointer(entries[26, 0]), (entries[26, 1],), np.uint8),
    )


@njit(inline="always", **OPTIONS)
def text_of(entries):  # type: ignore[no-untyped-def]
    """`Vocabulary.packed`."""
    return (
        carray(_pointer(entries[27, 0]), (entries[27, 1],), np.uint8),
        carray(_pointer(entries[28, 0]), (entries[28, 1],), np.int64),
    )


@njit(inline="always", **OPTIONS)
def path_of(entries):  # type: ignore[no-untyped-def]
    """Scratch space for walks, see `tree_walks`."""
    return carray(_pointer(entries[29, 0]), (entries[29, 1], 6), np.int64)
