"""Pieces that many pushdown automata hold, such as numbers: built once, copied to wherever they go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from grammar_workers.artifacts.lru import LeastRecentlyUsed
from grammar_workers.pushdown.builder import Piece, PushdownBuilder

_CAPACITY = 32 << 20
_MOST_MET = 4096


@dataclasses.dataclass(frozen=True)
class Fragment:
    """`piece` and the states in which it is entered, int32 (-1: none)."""

    piece: Piece
    entries: NDArray[np.int32]


def shared(
    builder: PushdownBuilder,
    identity: Hashable,
    build: Callable[[PushdownBuilder], NDArray[np.int32]],
) -> NDArray[np.int32]:
    """Append what `build(builder)` lays out; returns its entries as states of `builder`, int32 (-1: none).

    It must depend on `identity` alone. What comes up a second time is kept for the third: most never do, and copying
    takes a fifth of the time of laying out.
    """
    key = (identity, builder.limits)
    fragment = _known.get(key)
    if fragment is None:
        if _met.get(hash(key)) is None:
            _met.put(hash(key), True)
            return build(builder)
        scratch = PushdownBuilder(builder.limits)
        entries = build(scratch)
        fragment = Fragment(scratch.piece(), entries)
        _known.put(key, fragment)
    offset = builder.insert(fragment.piece)
    return np.where(fragment.entries >= 0, fragment.entries + offset, -1).astype(np.int32)


_known: LeastRecentlyUsed[Fragment] = LeastRecentlyUsed(_CAPACITY, lambda fragment: fragment.piece.nbytes)
"""Of this process, for all its grammars."""
_met: LeastRecentlyUsed[bool] = LeastRecentlyUsed(_MOST_MET, lambda _: 1)
"""Hashes of what has come up: the automata themselves may be large, and a collision does no harm."""
