"""Arrays: items one after the other, positions told apart as far as any assertion does."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.assertions import ArrayShape, FormulaId, ItemCount, JsonType
from grammar_workers.languages.json_schema.logic import FALSE, TRUE
from grammar_workers.languages.json_schema.solve.derivatives import Container, Move, Node, Rule, Step, Tally, negated

_MAX_UNROLLED = 1000
"""Positions that are told apart when several alternatives count differently."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlainArray:
    """Rules of the first items and of all later ones, and how many there may be (None: no maximum)."""

    prefix: tuple[Rule, ...]
    items: Rule
    minimum: int
    maximum: int | None


class Arrays(Container):
    """See the module."""

    @functools.cached_property
    def plain(self) -> PlainArray:
        """The array as a plain one; only where `is_plain`."""
        shapes = [shape for leaf in self.leaves if isinstance(shape := self.pool.assertion(leaf), ArrayShape)]
        bounded = [shape.maximum for shape in shapes if shape.maximum is not None]
        longest = max((len(shape.prefix) for shape in shapes), default=0)
        return PlainArray(
            tuple(self._every(self._item, position) for position in range(longest)),
            self._every(self._item, longest),
            max((shape.minimum for shape in shapes), default=0),
            min(bounded, default=None),
        )

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """At most one: no item can be passed over, so a node stands for one position."""
        move = self._move(node, first, min(first + 1, self._horizon), node.tally)
        if move is not None:
            yield move

    def _is_shape(self, leaf: FormulaId) -> bool:
        return isinstance(self.pool.assertion(leaf), ArrayShape)

    def _item(self, leaf: FormulaId, position: int) -> FormulaId:
        shape = self.pool.assertion(leaf)
        assert isinstance(shape, ArrayShape)
        return shape.prefix[position] if position < len(shape.prefix) else shape.items

    @functools.cached_property
    def _horizon(self) -> int:
        """The position from which on all positions are alike."""
        bounds = [0]
        for leaf in self.leaves:
            shape = self.pool.assertion(leaf)
            if isinstance(shape, ArrayShape):
                bounds += [len(shape.prefix), shape.minimum, 0 if shape.maximum is None else shape.maximum + 1]
        if max(bounds) > _MAX_UNROLLED:
            raise LimitExceededError(
                f"alternatives that count up to {max(bounds)} items (at most {_MAX_UNROLLED} can be told apart)"
            )
        return max(bounds)

    def _step(self, literal: FormulaId, part: int, tally: Tally) -> Step:
        leaf, positive = self.pool.split(literal)
        assertion = self.pool.assertion(leaf)
        if isinstance(assertion, ItemCount):
            step = Step(assertion.items, self._counted(assertion), leaf)
        else:
            assert isinstance(assertion, ArrayShape)
            full = assertion.maximum is not None and part >= assertion.maximum
            step = Step(FALSE if full else self._item(leaf, part), leaf, FALSE)
        return step if positive else negated(self.pool, step)

    def _counted(self, count: ItemCount) -> FormulaId:
        """What is left of a count after one more item that satisfies it."""
        if count.maximum == 0:
            return FALSE
        minimum = max(count.minimum - 1, 0)
        maximum = None if count.maximum is None else count.maximum - 1
        if minimum == 0 and maximum is None:
            return TRUE
        return self.pool.leaf(JsonType.ARRAY, ItemCount(count.items, minimum, maximum))

    def _closes(self, literal: FormulaId, node: Node) -> bool:
        leaf, positive = self.pool.split(literal)
        assertion = self.pool.assertion(leaf)
        if isinstance(assertion, ItemCount):
            return (assertion.minimum == 0) == positive
        assert isinstance(assertion, ArrayShape)
        # Beyond the maximum the literal has already become a constant.
        return (assertion.minimum <= node.last) == positive
