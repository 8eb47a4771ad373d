"""Rows that are long in the making: which tree of the vocabulary is walked for them."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import arrays as kernel_arrays
from grammar_workers.matching.kernels import mask
from grammar_workers.pushdown.byte_classes import classes_of, site_ends_of
from grammar_workers.pushdown.instructions import Tables
from grammar_workers.vocabulary.folded_trie import FoldedTree
from grammar_workers.vocabulary.vocabulary import Vocabulary

_UNKNOWN, _NOT_FOLDED = range(2)


class WalkedTrees:
    """The trees for the states of an automaton whose rows are long in the making. The caller serialises all calls."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary, entries: NDArray[np.int64]) -> None:
        self._tables = tables
        self._vocabulary = vocabulary
        self._entries = entries
        # The classes of bytes of groups of states, None where the vocabulary is better walked as it is.
        self._classes: list[bytes | None] = [None, None]
        # The one walked last, and for which group: kernels keep nothing alive.
        self._folded: FoldedTree | None = None
        self._folded_for = _UNKNOWN

    def choose(self, state: int) -> int:
        """Which tree to walk for the rows of a state (`mask.WHOLE_TREE`, `mask.FOLDED_TREE`), which kernels see."""
        group = self._group_of(state)
        classes = self._classes[group]
        if classes is None:
            return mask.WHOLE_TREE
        if group != self._folded_for:
            self._folded = self._vocabulary.folded_tree(classes)
            self._folded_for = group
            kernel_arrays.note_arrays(self._entries, kernel_arrays.FOLDED, self._folded)
        return mask.FOLDED_TREE

    def _group_of(self, state: int) -> int:
        group = self._groups.item(state)
        if group == _UNKNOWN:
            classes, states = classes_of(self._tables, self._site_ends, state)
            if not len(states):
                self._groups[state] = _NOT_FOLDED
                return _NOT_FOLDED
            group = len(self._classes)
            self._classes.append(classes)
            self._groups[states] = group
        return group

    @functools.cached_property
    def _groups(self) -> NDArray[np.int32]:
        """[states]: the place in `_classes`, or _UNKNOWN; _NOT_FOLDED where the rule may be left without a quote."""
        return np.zeros(len(self._tables.states), np.int32)

    @functools.cached_property
    def _site_ends(self) -> NDArray[np.int32]:
        return site_ends_of(self._tables)
