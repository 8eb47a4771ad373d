"""The byte automaton: flat tables of rules with call edges.

A pushdown automaton reads bytes. Each state reads one byte by its literal (this very byte leads to the next state) or
by a row of the dense table. Entering a state may run an *instruction*: check a guard on the counter, count, call a
rule, return from one, or go on to another state. For `{"a": [1, 2]}` with `{"properties": {"a": {"type": "array",
"items": {"type": "integer"}}}}`:

    object rule   '{' -> '"' 'a' '"' ':' ' ' -> CALL array, return to A;   A: ',' -> ...   '}' -> RETURN
    array rule    '[' -> CALL integer, return to B;   B: ',' ' ' -> CALL integer, return to B;   ']' -> RETURN
    integer rule  '1' -> D;   D: digit -> D, anything else -> return to B and read it there (EXIT)

Recursion is a rule that calls itself; the return stack is part of the configuration (see `matching.kernels.step`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.instructions import Tables
from grammar_workers.types import TokenId

Interval = tuple[int, int]
"""Inclusive bounds of counter values."""

UNBOUNDED = 2**31 - 1
Guard = tuple[Interval, ...]
"""Sorted, disjoint intervals one of which holds the counter, () for no condition, or a guard over bits (see below)."""
NEVER: Guard = ((-1, -1),)
"""A guard that no counter passes."""
COUNTER_BITS = 2 * code.GUARD_HALF
"""How many flags a counter holds."""

_SHAPES = {
    "states": code.STATE_COLUMNS,
    "table": 256,
    "instructions": code.INSTRUCTION_COLUMNS,
    "guards": code.GUARD_COLUMNS,
    "returns": 0,
    "loops": code.LOOP_COLUMNS,
    "token_edges": code.EDGE_COLUMNS,
    "boundaries": code.BOUNDARY_COLUMNS,
    "distinct": code.DISTINCT_COLUMNS,
}
"""The columns of each array, in the order of an artifact; 0: it has one dimension."""


@dataclasses.dataclass(frozen=True)
class PushdownAutomaton:
    """A finished pushdown automaton; the arrays are int32 and read-only, their columns are named in `instructions`.

    `token_edges` is [t, EDGE_COLUMNS], `boundaries` [b, BOUNDARY_COLUMNS], `distinct` [d, DISTINCT_COLUMNS]; the others
    are as in `Tables`. Matching begins in START, and ACCEPT accepts.
    """

    states: NDArray[np.int32]
    table: NDArray[np.int32]
    instructions: NDArray[np.int32]
    guards: NDArray[np.int32]
    returns: NDArray[np.int32]
    loops: NDArray[np.int32]
    token_edges: NDArray[np.int32]
    boundaries: NDArray[np.int32]
    distinct: NDArray[np.int32]

    def __post_init__(self) -> None:
        for name in _SHAPES:
            getattr(self, name).flags.writeable = False

    @functools.cached_property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _SHAPES)

    @functools.cached_property
    def tables(self) -> Tables:
        """The arrays that describe bytes."""
        return Tables(self.states, self.table, self.instructions, self.guards, self.returns, self.loops)

    @functools.cached_property
    def calls(self) -> NDArray[np.int32]:
        """The instructions that call."""
        return self.instructions[self.instructions[:, code.INSTRUCTION_MOVE] == code.CALL]

    @functools.cached_property
    def site_labels(self) -> dict[int, int]:
        """Where a return site begins in `returns` -> with how many labels one may return there; a site ends where the
        next one begins."""
        bases = np.unique(self.calls[:, code.INSTRUCTION_SITE])
        usable = np.add.reduceat(self.returns >= 0, bases, dtype=np.int64) if len(bases) else bases
        return dict(zip(bases.tolist(), usable.tolist(), strict=True))

    @functools.cached_property
    def label_counts(self) -> dict[int, int]:
        """Entry state of a called rule -> with how many labels its callers let it return."""
        counts: dict[int, int] = {}
        for target, base in self.calls[:, [code.INSTRUCTION_TARGET, code.INSTRUCTION_SITE]].tolist():
            counts[target] = max(counts.get(target, 0), self.site_labels[base])
        return counts

    @functools.cached_property
    def token_edges_of(self) -> dict[int, list[tuple[TokenId, TokenId, int]]]:
        """State -> its token edges: (first token, last token, target)."""
        edges: dict[int, list[tuple[TokenId, TokenId, int]]] = {}
        for state, first, last, target in self.token_edges.tolist():
            edges.setdefault(state, []).append((first, last, target))
        return edges

    def to_bytes(self) -> bytes:
        """The length of each array (int64), then the arrays one after the other (int32), little-endian."""
        arrays = [getattr(self, name) for name in _SHAPES]
        lengths = np.array([len(array) for array in arrays], "<i8")
        return b"".join([lengths.tobytes(), *(array.astype("<i4").tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, data: bytes) -> PushdownAutomaton:
        """The inverse of `to_bytes`. Trusts nothing: raises ValueError unless every index fits its array."""
        head = 8 * len(_SHAPES)
        if len(data) < head:
            raise ValueError("truncated")
        lengths = np.frombuffer(data[:head], "<i8").tolist()
        arrays = {}
        position = head
        for (name, width), length in zip(_SHAPES.items(), lengths, strict=True):
            size = 4 * length * (width or 1)
            if length < 0 or position + size > len(data):
                raise ValueError(f"array {name!r} is longer than the data")
            array = np.frombuffer(data, "<i4", length * (width or 1), position).astype(np.int32)
            arrays[name] = array.reshape(-1, width) if width else array
            position += size
        if position != len(data):
            raise ValueError("bytes after the last array")
        pushdown = cls(**arrays)
        pushdown.validate()
        return pushdown

    def validate(self) -> None:
        """Raise ValueError unless every index that a kernel would follow lies inside its array."""
        many = len(self.states)
        lit, row, exit_label, op, loop = self.states.T
        _require(many >= 2, "too few states")
        _require(_inside(lit, -1, 256) and _inside(row, -1, len(self.table)), "state columns")
        _require(_inside(op, 0, len(self.instructions)) and _inside(loop, 0, len(self.loops)), "state columns")
        _require(bool((np.flatnonzero(lit >= 0) < many - 1).all()), "literal at the last state")
        _require(_inside(self.table, -1, many) and _inside(self.returns, -1, many), "targets")
        guard_start, guard_end, action, value, move, target, site, mode = self.instructions.T
        _require(_inside(guard_start, 0, len(self.guards) + 1) and _inside(guard_end, 0, len(self.guards) + 1), "ops")
        _require(_inside(value, 0, UNBOUNDED + 1), "op values")
        _require(_inside(value[action == code.SET_BIT], 0, COUNTER_BITS), "op bits")
        _require(
            _inside(action, code.KEEP, code.ACTIONS)
            and _inside(move, code.STAY, code.OTHERWISE + 1)
            and _inside(mode, 0, code.INHERIT + 1),
            "ops",
        )
        _require(_inside(self.loops[:, code.LOOP_BASE], code.TOLERATES_UNESCAPED, many), "loops")
        _require(_inside(self.loops[:, code.LOOP_RUN], 0, code.TOLERATED_RUN + 1), "loops")
        _require(_inside(self.token_edges[:, [code.EDGE_STATE, code.EDGE_TARGET]], 0, many), "token edges")
        first_token, last_token = self.token_edges[:, [code.EDGE_FIRST, code.EDGE_LAST]].T
        _require(bool(((first_token >= 0) & (first_token <= last_token)).all()), "token edges")
        _require(_inside(self.boundaries, 0, many), "boundaries")
        _require(_inside(self.distinct[:, [code.DISTINCT_NAMES, code.DISTINCT_ENDLESS]], 0, 2), "distinct values")
        _require(_inside(self.distinct[:, [code.DISTINCT_SITE, code.DISTINCT_LABELS]], 0, UNBOUNDED), "distinct values")
        jumps = (move == code.CALL) | (move == code.GOTO) | (move == code.OTHERWISE)
        _require(_inside(target[jumps], 0, many), "op targets")
        # Labels are added to the site of whichever frame is on top, so every site must have room for every label.
        labels = np.concatenate([target[move == code.RETURN], exit_label])
        _require(_inside(target[move == code.RETURN], 0, UNBOUNDED) and _inside(exit_label, -1, UNBOUNDED), "labels")
        room = len(self.returns) - max(int(labels.max(initial=0)), 0)
        _require(_inside(site[move == code.CALL], 0, max(room, 0)), "return sites")


def _inside(values: NDArray[np.int32], low: int, high: int) -> bool:
    return values.size == 0 or bool(values.min() >= low and values.max() < high)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"malformed automaton: {what}")


def _mask(bits: Iterable[int]) -> Interval:
    """The mask with these bits, in two halves."""
    number = sum(1 << bit for bit in set(bits))
    return number & ((1 << code.GUARD_HALF) - 1), number >> code.GUARD_HALF


def some_clear(bits: Iterable[int]) -> Guard:
    """Passed while at least one of these bits of the counter is clear."""
    return ((code.SOME_CLEAR, 0), _mask(bits))


def all_set(masks: Iterable[Iterable[int]]) -> Guard:
    """Passed once all bits of at least one of the masks are set."""
    return ((code.ALL_SET, 0), *map(_mask, masks))


def advice(masks: Sequence[Iterable[int]], complete: Sequence[Iterable[int]]) -> Guard:
    """Always passed, but a shortest completion goes here only where all bits of one of `masks` are set.

    Where it begins, all bits of one of `complete` will do, too.
    """
    return ((code.ADVICE, len(masks)), *map(_mask, (*masks, *complete)))


def union_guards(guards: Sequence[Guard]) -> Guard:
    """The union of guards of one kind, either intervals or `some_clear`; one that is () always passes."""
    if not guards or () in guards:
        return ()
    low, high = 0, 0
    if any(guard[0][0] == code.SOME_CLEAR for guard in guards):
        for _, mask in (guard for guard in guards if guard != NEVER):
            low, high = low | mask[0], high | mask[1]
        return ((code.SOME_CLEAR, 0), (low, high))
    merged: list[Interval] = []
    intervals = sorted(itertools.chain.from_iterable(guards))
    start, end = intervals[0]
    for low, high in intervals:
        if low > end + 1:
            merged.append((start, end))
            start, end = low, high
        elif high > end:
            end = high
    return (*merged, (start, end))
