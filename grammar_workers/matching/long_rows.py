"""Rows that are long in the making: which tree is walked for them, and what those of one state have in common."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import arrays as kernel_arrays
from grammar_workers.matching.kernels import mask
from grammar_workers.matching.kernels.step import (
    TRACE_FIRST_LEVEL,
    TRACE_HIGH,
    TRACE_LOOKED_INTO,
    TRACE_LOW,
)
from grammar_workers.pushdown.byte_classes import classes_of, site_ends_of
from grammar_workers.pushdown.instructions import FAR, Tables
from grammar_workers.types import MaskRow
from grammar_workers.vocabulary.folded_trie import FoldedTree
from grammar_workers.vocabulary.vocabulary import Vocabulary

Way = tuple[int, int, int]
"""What `kernels.mask.fill_row` is told: which tree to walk, and bounds of the counter."""
SHORT: Way = (mask.TREE_IF_SHORT, -FAR, FAR)
_UNKNOWN, _LEAVES = range(2)


class LongRows:
    """What is known of the states of an automaton with long rows. The caller serialises all calls.

    In most of these states only a quote or a backslash may lead out of the rule that they belong to. All other tokens
    are then allowed, or not, whatever lies below on the stack: they are kept, and the row of another frame is made of
    them and a walk of the few tokens that are left.
    """

    def __init__(self, tables: Tables, vocabulary: Vocabulary, entries: NDArray[np.int64]) -> None:
        self._tables = tables
        self._vocabulary = vocabulary
        self._entries = entries
        # The classes of bytes of groups of states, None where the vocabulary is better walked as it is.
        self._classes: list[bytes | None] = [None, None]
        # Per state: bounds of the counter, and the allowed tokens without quotes and backslashes.
        self._kept: dict[int, list[tuple[int, int, MaskRow]]] = {}
        # The one walked last, and for which group: kernels keep nothing alive.
        self._folded: FoldedTree | None = None
        self._folded_for = _UNKNOWN
        self.nbytes = 0

    def choose(self, state: int, counter: int, row: MaskRow) -> Way:
        """How to fill `row`, into which what is known of it is put. Notes the folded tree for the kernels."""
        for low, high, known in self._kept.get(state, ()):
            if low <= counter <= high:
                row[:] = known
                return mask.LEADING_OUT, low, high
        group = self._group_of(state)
        classes = self._classes[group]
        if classes is None:
            return mask.WHOLE_TREE, -FAR, FAR
        if group != self._folded_for:
            self._folded = self._vocabulary.folded_tree(classes)
            self._folded_for = group
            kernel_arrays.note_arrays(self._entries, kernel_arrays.FOLDED, self._folded)
        return mask.FOLDED_TREE, -FAR, FAR

    def keep(self, state: int, row: MaskRow, trace: NDArray[np.int64]) -> None:
        """Keep what rows of this state have in common; `trace` is that of the walk that made this one."""
        # A row that depends on no frame is shared anyway.
        if trace[TRACE_LOOKED_INTO] and self._groups[state] > _LEAVES:
            low, high = trace.item(TRACE_FIRST_LEVEL + TRACE_LOW), trace.item(TRACE_FIRST_LEVEL + TRACE_HIGH)
            self._kept.setdefault(state, []).append((low, high, row & self._vocabulary.string_slices.unfolded.mask))
            self.nbytes += row.nbytes

    def _group_of(self, state: int) -> int:
        group = self._groups.item(state)
        if group == _UNKNOWN:
            classes, states = classes_of(self._tables, self._site_ends, state)
            if not len(states):
                self._groups[state] = _LEAVES
                return _LEAVES
            group = len(self._classes)
            self._classes.append(classes)
            self._groups[states] = group
        return group

    @functools.cached_property
    def _groups(self) -> NDArray[np.int32]:
        """[states]: the place in `_classes`, or _UNKNOWN; _LEAVES where the rule may be left without a quote."""
        return np.zeros(len(self._tables.states), np.int32)

    @functools.cached_property
    def _site_ends(self) -> NDArray[np.int32]:
        return site_ends_of(self._tables)
