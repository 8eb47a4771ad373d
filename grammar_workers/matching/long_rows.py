"""Selection of the prefix tree for a slow mask: the plain tree of all tokens or a folded tree.

A mask is computed by a walk of a prefix tree of the tokens. A *long walk* is a walk of the plain tree from a state that
reads many bytes (`_reads_many` in `kernels.mask`). In place of such a walk, the kernel returns WIDE, and the recognizer
calls `WalkedTrees.choose`. In a folded tree, equivalent bytes share an edge, so a walk of it takes less time. For
example, `[a-z]+` treats all letters alike (see `vocabulary.folded_trie`).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import arrays as kernel_arrays
from grammar_workers.matching.kernels import mask
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.byte_classes import classes_of, site_ends_of
from grammar_workers.pushdown.instructions import Tables
from grammar_workers.vocabulary.folded_trie import FoldedTree
from grammar_workers.vocabulary.vocabulary import Vocabulary

_UNKNOWN, _NOT_FOLDED = range(2)
# Up to this number of byte classes, folding takes 0.3 to 1.5 ms. With more classes it takes 3 to 8 ms, and walks of the
# plain tree take 0.3 to 3 ms, but 10 ms where characters are counted. Classes of bytes from 0x80 on count twice.
_FEW_CLASSES = 25


class WalkedTrees:
    """Selector of the prefix tree whose walk computes a slow mask: the plain tree of all tokens, or a folded tree.

    In a folded tree, equivalent bytes share an edge. An object belongs to one automaton. The caller must serialize all
    calls.

    Args:
        tables: Tables of the automaton.
        vocabulary: Tokens of the model. It caches the folded trees.
        entries: Addresses and lengths of the recognizer's arrays (see `kernels.arrays`), int64 [arrays, 2]. `choose`
            writes the addresses of a folded tree into it.
    """

    def __init__(self, tables: Tables, vocabulary: Vocabulary, entries: NDArray[np.int64]) -> None:
        self._tables = tables
        self._vocabulary = vocabulary
        self._entries = entries
        # Byte classes per group of states. None: the plain tree is walked.
        self._classes: list[bytes | None] = [None, None]
        # The last folded tree and its group. The reference keeps the arrays alive while kernels use their addresses.
        self._folded: FoldedTree | None = None
        self._folded_for = _UNKNOWN

    def choose(self, state: int) -> int:
        """Select the prefix tree for the masks of a state, and make this tree available to the kernels.

        In a folded tree, equivalent bytes share an edge. It is selected if the bytes that can be read from the state on
        have few equivalence classes. The tree stays available until the next call.

        Args:
            state: State of the automaton. The counter and the stack do not matter.

        Returns:
            `mask.WHOLE_TREE` (the plain tree of all tokens) or `mask.FOLDED_TREE`.
        """
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
            instructions = self._tables.instructions[self._tables.states[states, code.STATE_INSTRUCTION]]
            counts = instructions[:, code.INSTRUCTION_ACTION].any()
            is_few = classes is not None and len({*classes}) + len({*classes[0x80:]}) <= _FEW_CLASSES
            self._classes.append(classes if is_few or counts else None)
            self._groups[states] = group
        return group

    @functools.cached_property
    def _groups(self) -> NDArray[np.int32]:
        """[states]: index into `_classes`; _UNKNOWN at first; _NOT_FOLDED if the rule may end without a quote."""
        return np.zeros(len(self._tables.states), np.int32)

    @functools.cached_property
    def _site_ends(self) -> NDArray[np.int32]:
        return site_ends_of(self._tables)
