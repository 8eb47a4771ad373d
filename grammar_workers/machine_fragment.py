"""Pieces of machines that many machines hold, such as numbers and formats: built once, copied to wherever they go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.lru import LeastRecentlyUsed
from grammar_workers.machine_builder import MachineBuilder, Piece

OUTSIDE = -2
"""Fragments are built with -2, -3, ... in place of states outside of them (-1 is no state)."""
_CAPACITY = 32 << 20
_MOST_MET = 4096


@dataclasses.dataclass(frozen=True)
class Fragment:
    """`piece` and the states in which it is entered, int32 (-1: none)."""

    piece: Piece
    entries: NDArray[np.int32]


def shared(
    builder: MachineBuilder,
    identity: Hashable,
    build: Callable[[MachineBuilder, Sequence[int]], Sequence[int] | NDArray[np.int32]],
    outside: Sequence[int] = (),
) -> NDArray[np.int32]:
    """Append what `build(builder, outside)` lays out; returns its entries as states of `builder`.

    It must depend on `identity` and the states `outside` alone. What comes up a second time is kept for the third:
    most patterns never do, and copying takes a fifth of the time of laying out.
    """
    key = (identity, builder.limits)
    fragment = _known.get(key)
    if fragment is None:
        if _met.get(hash(key)) is None:
            _met.put(hash(key), True)
            return np.array(build(builder, outside), np.int32)
        scratch = MachineBuilder(builder.limits)
        entries = np.array(build(scratch, range(OUTSIDE, OUTSIDE - len(outside), -1)), np.int32)
        fragment = Fragment(scratch.piece(), entries)
        _known.put(key, fragment)
    offset = builder.insert(fragment.piece, outside)
    return np.where(fragment.entries >= 0, fragment.entries + offset, -1).astype(np.int32)


_known: LeastRecentlyUsed[Fragment] = LeastRecentlyUsed(_CAPACITY, lambda fragment: fragment.piece.nbytes)
"""Of this process, for all its grammars."""
_met: LeastRecentlyUsed[bool] = LeastRecentlyUsed(_MOST_MET, lambda _: 1)
"""Hashes of what has come up: the automata themselves may be large, and a collision does no harm."""
