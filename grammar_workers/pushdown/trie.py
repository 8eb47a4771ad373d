"""Pushdown states that read one of many literal byte strings, such as property names, enumerations and choices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from grammar_workers.pushdown.builder import NOTHING_BESIDE, Beside, PushdownBuilder, no_moves


class _Branch(NamedTuple):
    """A state for `entries`, which share `depth` bytes and then differ. Its dense row is filled in later."""

    entries: Sequence[tuple[bytes, int]]
    depth: int
    state: int
    beside: Beside
    op: int
    exit_label: int


@dataclasses.dataclass
class TextTrie:
    """A prefix tree of states that reads one of several byte strings.

    Args:
        builder: Builder to which the states are appended.
        end_op: Returns the instruction on entering the state after an entry, for the number of the entry.
        beside: Returns the argument `beside` of `PushdownBuilder.literal` for the bytes of an entry: the dense rows for
            all other bytes. Entries with a common prefix must have equal rows for the prefix. None: other bytes lead
            nowhere.
        guard: Returns the instruction on entering a branch, for the numbers of all entries in it. None: no instruction.
        exit_label: Label with which the rule may return to its caller after an entry. Then an entry may be a prefix of
            another entry. -1: the rule does not return.
        known: Cache of branches, to which the tree adds. Trees that share a cache must have equal other arguments.
            Equal branches are appended once.
    """

    builder: PushdownBuilder
    end_op: Callable[[int], int]
    _: dataclasses.KW_ONLY
    beside: Callable[[bytes], Sequence[Beside]] | None = None
    guard: Callable[[Sequence[int]], int] | None = None
    exit_label: int = -1
    known: dict[Hashable, int] = dataclasses.field(default_factory=dict)
    _branches: list[_Branch] = dataclasses.field(init=False, default_factory=list)

    def add(self, entries: Sequence[tuple[bytes, int]]) -> int:
        """Append the states for some entries.

        Args:
            entries: Pairs (byte string, number). The byte strings are distinct and ascending.

        Returns:
            The number of the first state.
        """
        root = self._append(entries, 0)
        # `_fill` appends to this list.
        for branch in self._branches:
            self._fill(branch)
        return root

    def _append(self, entries: Sequence[tuple[bytes, int]], depth: int) -> int:
        """Append the states for entries that share `depth` bytes. Branches are finished later."""
        op = self.guard([number for _, number in entries]) if self.guard else 0
        identity = (depth, *entries)
        start = self.known.get(identity)
        if start is not None:
            return start
        (first, number), (last, _) = entries[0], entries[-1]
        around = self.beside(last) if self.beside else ()
        start = self.known[identity] = self.builder.next_state
        if len(entries) == 1:
            self.builder.spend(len(first) - depth + 1)
            end_op = self.end_op(number)
            return self.builder.literal(
                first[depth:], beside=around[depth:], op=op, end_op=end_op, end_label=self.exit_label
            )
        shared = depth
        limit = min(len(first), len(last))
        while shared < limit and first[shared] == last[shared]:
            shared += 1
        self.builder.spend(shared - depth + 1)
        self.builder.literal(first[depth:shared], beside=around[depth:shared], op=op)
        ended = len(first) == shared
        self._branches.append(
            _Branch(
                entries[ended:],
                shared,
                self.builder.next_state - 1,
                around[shared] if around else NOTHING_BESIDE,
                0 if shared > depth else op,
                self.exit_label if ended else -1,
            )
        )
        return start

    def _fill(self, branch: _Branch) -> None:
        """Append the states after the next byte of a branch, and fill in its dense row."""
        row, loop = branch.beside
        dense = self.builder.row_targets(row) if row >= 0 else no_moves()
        for byte, group in itertools.groupby(branch.entries, lambda entry: entry[0][branch.depth]):
            dense[byte] = self._append(list(group), branch.depth + 1)
        row = self.builder.row(dense)
        self.builder.fill(branch.state, row=row, op=branch.op, exit_label=branch.exit_label, loop=loop)
