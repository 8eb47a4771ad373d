"""The pushdown automaton over bytes: flat tables of rules that call each other.

A state reads one byte by its *literal* or by its *dense row*. The literal is a byte that leads to the state with the
next number. A dense row has the next state for each of the 256 bytes. Entering a state may run an *instruction*. It can
test the counter (a *guard*), change the counter, call a rule, return from a rule, or jump to another state.

These rules read `{"a": [1, 2]}` for `{"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}`:

    object rule   '{' -> '"' 'a' '"' ':' ' ' -> CALL array, return to A;   A: ',' -> ...   '}' -> RETURN
    array rule    '[' -> CALL integer, return to B;   B: ',' ' ' -> CALL integer, return to B;   ']' -> RETURN
    integer rule  '1' -> D;   D: digit -> D, anything else -> return to B and read it there (EXIT)

A recursive specification becomes a rule that calls itself. The automaton does not store the return stack.
`matching.kernels.step` runs the automaton, and keeps the stack in its configurations.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.charset import merged
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.instructions import Tables
from grammar_workers.types import TokenId

# Inclusive bounds of counter values.
Interval = tuple[int, int]

# The upper bound of an interval or length without a maximum.
UNBOUNDED = 2**31 - 1
# A condition on the counter: sorted, disjoint intervals, one of which must contain it; () for no condition; or a
# guard over the bits of the counter (see `some_clear`, `all_set`, `advice`).
Guard = tuple[Interval, ...]
# A guard that no counter passes.
NEVER: Guard = ((-1, -1),)
# Number of flags that a counter can hold.
COUNTER_BITS = 2 * code.GUARD_HALF

# Number of columns of each array, in the order of an artifact. 0: the array has one dimension.
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


@dataclasses.dataclass(frozen=True)
class PushdownAutomaton:
    """A finished pushdown automaton over bytes. Matching begins in the state START and accepts in the state ACCEPT.

    All arrays are int32 and read-only. The module `instructions` defines the columns (STATE_COLUMNS, ...).

    Attributes:
        states: States, [n, STATE_COLUMNS].
        table: Dense rows, [rows, 256]: the state after each byte, or DEAD (-1).
        instructions: Instructions, which run on entering a state, [k, INSTRUCTION_COLUMNS].
        guards: Conditions on the counter, [g, GUARD_COLUMNS].
        returns: Return states of all calls, [r]. The states of one call, its return site, are consecutive. -1: none.
        loops: Records of the character sequences that a state allows, with which masks are computed faster, [l,
            LOOP_COLUMNS].
        token_edges: Transitions that read a whole token by its ID, [t, EDGE_COLUMNS].
        boundaries: Jumps to another state between two tokens, with which tokens are counted, [b, BOUNDARY_COLUMNS].
        distinct: Calls whose values must be unique (`uniqueItems`), [d, DISTINCT_COLUMNS].
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
        """Memory of all arrays, in bytes."""
        return sum(getattr(self, name).nbytes for name in _SHAPES)

    @functools.cached_property
    def tables(self) -> Tables:
        """The arrays of the transitions by bytes as a named tuple, which numba functions take. They are not copied."""
        return Tables(self.states, self.table, self.instructions, self.guards, self.returns, self.loops)

    @functools.cached_property
    def calls(self) -> NDArray[np.int32]:
        """The instructions that call a rule, int32 [calls, INSTRUCTION_COLUMNS]."""
        return self.instructions[self.instructions[:, code.INSTRUCTION_MOVE] == code.CALL]

    @functools.cached_property
    def site_labels(self) -> dict[int, int]:
        """Index in `returns` where a return site begins -> number of return states in this site.

        A return site is the list of the return states of a call. A rule returns with a label (a small number), which
        selects the return state. Labels that the caller does not accept (-1) are not counted.
        """
        bases = np.unique(self.calls[:, code.INSTRUCTION_SITE])
        usable = np.add.reduceat(self.returns >= 0, bases, dtype=np.int64) if len(bases) else bases
        return dict(zip(bases.tolist(), usable.tolist(), strict=True))

    @functools.cached_property
    def label_counts(self) -> dict[int, int]:
        """First state of a called rule -> number of labels that the caller with the most labels accepts.

        A label is the small number with which a rule returns. It selects the return state of the caller.
        """
        counts: dict[int, int] = {}
        for target, base in self.calls[:, [code.INSTRUCTION_TARGET, code.INSTRUCTION_SITE]].tolist():
            counts[target] = max(counts.get(target, 0), self.site_labels[base])
        return counts

    @functools.cached_property
    def token_edges_of(self) -> dict[int, list[tuple[TokenId, TokenId, int]]]:
        """State -> its transitions by token ID: triples (first token, last token, next state), bounds inclusive.

        States without such transitions are not in the dictionary.
        """
        edges: dict[int, list[tuple[TokenId, TokenId, int]]] = {}
        for state, first, last, target in self.token_edges.tolist():
            edges.setdefault(state, []).append((first, last, target))
        return edges

    def to_bytes(self) -> bytes:
        """Return the automaton as bytes, for `from_bytes`.

        Returns:
            The length of each array (int64), then the arrays (int32), all little-endian.
        """
        arrays = [getattr(self, name) for name in _SHAPES]
        lengths = np.array([len(array) for array in arrays], "<i8")
        return b"".join([lengths.tobytes(), *(array.astype("<i4").tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, data: bytes) -> PushdownAutomaton:
        """Deserialize an automaton from untrusted bytes.

        Args:
            data: Bytes from `to_bytes`.

        Returns:
            The automaton, which `validate` has checked.

        Raises:
            ValueError: The data has the wrong length, or an index is outside its array.
        """
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
        """Check that every index in the arrays is in range. Kernels (functions compiled by numba) do not check this.

        ValueError is raised if an index or another value is out of range. The message names the kind of value.
        """
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
        # A kernel adds any label to the site of the topmost frame, so every site must have room for every label.
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
    """Return the mask with these bits, as its low and high half."""
    number = sum(1 << bit for bit in set(bits))
    return number & ((1 << code.GUARD_HALF) - 1), number >> code.GUARD_HALF


def some_clear(bits: Iterable[int]) -> Guard:
    """Return a guard (condition on the counter) that passes if at least one of the given bits is 0.

    Args:
        bits: Numbers of the tested bits of the counter, 0 to COUNTER_BITS - 1.
    """
    return ((code.SOME_CLEAR, 0), _mask(bits))


def all_set(masks: Iterable[Iterable[int]]) -> Guard:
    """Return a guard (condition on the counter) that passes if the counter has all bits of at least one mask.

    Args:
        masks: Masks of counter bits. A mask is given by the numbers of its bits, 0 to COUNTER_BITS - 1.
    """
    return ((code.ALL_SET, 0), *map(_mask, masks))


def advice(masks: Sequence[Iterable[int]], complete: Sequence[Iterable[int]]) -> Guard:
    """Return a guard (condition on the counter) that affects only the search for a shortest completion.

    When the automaton reads an output, the guard always passes. The search for a completion (text up to the end of the
    output) enters a state with this guard only if the counter has all bits of at least one mask. A mask is given by the
    numbers of its bits, 0 to COUNTER_BITS - 1.

    Args:
        masks: Masks that always apply.
        complete: Masks that apply only while the counter has the value with which the search began.

    Returns:
        The guard, of kind ADVICE.
    """
    return ((code.ADVICE, len(masks)), *map(_mask, (*masks, *complete)))


def union_guards(guards: Sequence[Guard]) -> Guard:
    """Return a guard (condition on the counter) that passes if one of `guards` passes.

    Args:
        guards: Guards of one sort: either intervals, or results of `some_clear`. Guards of both sorts may be mixed
            with () (always passes) and NEVER (never passes).

    Returns:
        The union of the intervals, or `some_clear` of all bits. () if `guards` is empty or contains ().
    """
    if not guards or () in guards:
        return ()
    low, high = 0, 0
    if code.SOME_CLEAR in {guard[0][0] for guard in guards}:
        for _, mask in (guard for guard in guards if guard != NEVER):
            low, high = low | mask[0], high | mask[1]
        return ((code.SOME_CLEAR, 0), (low, high))
    return merged(itertools.chain.from_iterable(guards))
