"""PushdownAutomaton states that tell a set of literal byte strings apart: property names, enumerations, choices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from grammar_workers.pushdown.builder import NOTHING_BESIDE, Beside, PushdownBuilder, no_moves


class _Branch(NamedTuple):
    """A state for `entries[low:high]`, which share `depth` bytes and go on in different ways; its row comes later."""

    low: int
    high: int
    depth: int
    state: int
    beside: Beside
    op: int
    exit_label: int


def trie_of_texts(
    builder: PushdownBuilder,
    entries: Sequence[tuple[bytes, int]],
    end_op: Callable[[int], int],
    *,
    beside: Callable[[bytes], Sequence[Beside]] | None = None,
    guard: Callable[[Sequence[int]], int] | None = None,
    exit_label: int = -1,
    known: dict[Hashable, int] | None = None,
) -> int:
    """Append states that read exactly one of `entries`: sorted, distinct (bytes, number) pairs. Returns the first.

    `end_op(number)` is the op of the state that an entry's last byte leads to. Bytes that no entry continues with go
    where `beside(entry)` says for each byte of an entry (see `PushdownBuilder.literal`), which must be the same for
    entries that begin alike, and may append states. `guard(numbers)` is the op on entering a branch that holds these
    entries. With `exit_label`, the text may end behind an entry, with this label, and an entry may be a prefix of
    another. Trees that differ in their entries alone may share `known`: branches of the same entries are then appended
    once.
    """
    known = {} if known is None else known
    branches: list[_Branch] = []

    def append(low: int, high: int, depth: int, op: int) -> int:
        """States for entries[low:high], which share their first `depth` bytes; branches are finished later."""
        identity = (depth, *entries[low:high])
        start = known.get(identity)
        if start is not None:
            return start
        first, number = entries[low]
        last, _ = entries[high - 1]
        around = beside(last) if beside else ()
        start = known[identity] = builder.next_state
        if high - low == 1:
            builder.spend(len(first) - depth + 1)
            return builder.literal(
                first[depth:], beside=around[depth:], op=op, end_op=end_op(number), end_label=exit_label
            )
        shared = depth
        limit = min(len(first), len(last))
        while shared < limit and first[shared] == last[shared]:
            shared += 1
        builder.spend(shared - depth + 1)
        builder.literal(first[depth:shared], beside=around[depth:shared], op=op)
        ended = len(first) == shared
        branches.append(
            _Branch(
                low + ended,
                high,
                shared,
                builder.next_state - 1,
                around[shared] if around else NOTHING_BESIDE,
                0 if shared > depth else op,
                exit_label if ended else -1,
            )
        )
        return start

    root = append(0, len(entries), 0, guard([number for _, number in entries]) if guard else 0)
    # More are appended while they are finished.
    for low, high, depth, state, (row, loop), branch_op, label in branches:
        dense = builder.row_targets(row) if row >= 0 else no_moves()
        while low < high:
            byte = entries[low][0][depth]
            end = low + 1
            while end < high and entries[end][0][depth] == byte:
                end += 1
            op = guard([number for _, number in entries[low:end]]) if guard else 0
            dense[byte] = append(low, end, depth + 1, op)
            low = end
        builder.fill(state, row=builder.row(dense), op=branch_op, exit_label=label, loop=loop)
    return root
