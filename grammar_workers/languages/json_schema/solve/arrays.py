"""Derivative graphs of arrays. Positions of items are distinguished only if an assertion distinguishes them.

A *node* of the graph has the formulas that are undecided after some items. A *move* reads one more item.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.assertions import ArrayShape, FormulaId, ItemCount, JsonType, UniqueItems
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.keywords import MAX_UNIQUE
from grammar_workers.languages.json_schema.solve.derivatives import (
    Counts,
    Demand,
    Derivative,
    DerivativeGraph,
    Move,
    Node,
    negated,
)
from grammar_workers.languages.json_schema.solve.sizes import ENOUGH, NotDistinctError

# Largest number of positions that are distinguished if alternatives count differently.
_MAX_UNROLLED = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class PlainArray:
    """Arrays of a schema in which each position has one fixed demand. Only the number of items is left to choose.

    A demand is a formula that a value must satisfy.

    Attributes:
        prefix: Demands of the first items, one per position.
        items: Demand of every item after the prefix.
        minimum: Smallest number of items.
        maximum: Largest number of items, inclusive; None for no limit.
    """

    prefix: tuple[Demand, ...]
    items: Demand
    minimum: int
    maximum: int | None

    @property
    def children(self) -> tuple[Demand, ...]:
        """Demands of all items."""
        return (*self.prefix, self.items)


class Arrays(DerivativeGraph):
    """Graph of the arrays of one demand (formula for a value).

    A node has the formulas that are undecided after some items. A move reads one more item. Part i of a move is the
    item with index i. All items from some index on share one part number, because no assertion distinguishes them.

    Args:
        pool: Table of all formulas.
        formulas: The demanded formula, then the tested ones, all resolved (reduced to values of one type) for arrays.
        within: The formulas from which `formulas` were resolved, to find JSON Pointers for messages.
        listed: True to enforce unique items by the formula `once`; nodes then distinguish the sets of used values.
            False if the recognizer compares items.

    Attributes:
        once: Formula that is equivalent to `uniqueItems`: each listed value occurs at most once. None if the schema
            does not list the values of items, or if the demanded formula does not require `uniqueItems`.
        unique: The formulas of `uniqueItems` that the recognizer must enforce.

    Raises:
        NotDistinctError: `uniqueItems` decides between alternatives, and the schema does not list the values of items.
    """

    def __init__(
        self,
        pool: FormulaPool,
        formulas: tuple[FormulaId, ...],
        *,
        within: tuple[FormulaId, ...],
        listed: bool = False,
    ) -> None:
        insisted, formulas = _without_uniqueness(pool, formulas, within)
        known = [unique.once for atom in insisted if isinstance(unique := pool.assertion(atom), UniqueItems)]
        self.once = next((once for once in known if once is not None), None)
        self.unique = () if listed else insisted
        if listed and self.once is not None:
            formulas = (pool.all_of([formulas[0], self.once]), *formulas[1:])
        super().__init__(pool, formulas)

    @property
    def is_distinct(self) -> bool:
        """True if the recognizer must compare each item with all earlier items."""
        return bool(self.unique)

    @functools.cached_property
    def plain(self) -> PlainArray:
        """Demands (formulas) of all items. Only valid if `is_plain` is true: each position has one fixed demand."""
        shapes = [shape for atom in self.atoms if isinstance(shape := self.pool.assertion(atom), ArrayShape)]
        bounded = [shape.maximum for shape in shapes if shape.maximum is not None]
        longest = max((len(shape.prefix) for shape in shapes), default=0)
        return PlainArray(
            tuple(map(self._plain_demand, range(longest))),
            self._plain_demand(longest),
            max((shape.minimum for shape in shapes), default=0),
            min(bounded, default=None),
        )

    @property
    def seen_sets(self) -> int:
        """Number of sets of used values that nodes must distinguish if each listed value may occur only once.

        Only valid if `once` is not None.
        """
        assert self.once is not None
        values = len(self.pool.conjuncts(self.once))
        atoms = self.pool.atoms(self.formulas[0])
        shapes = [self.pool.assertion(part) for part in self.pool.conjuncts(self.formulas[0]) if part in atoms]
        most = [one.maximum for one in shapes if isinstance(one, ArrayShape) and one.maximum is not None]
        return sum(math.comb(values, count) for count in range(min([values, *most]) + 1))

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """Yield the move that reads the next item, if another item is possible.

        There is at most one move, because an array cannot skip items.

        Args:
            node: Node (undecided formulas) before the item.
            first: Index of the item.
            stop: Not used.
        """
        move = self._move(node, first, min(first + 1, self._horizon), node.counts)
        if move is not None:
            yield move

    def _is_shape(self, atom: FormulaId) -> bool:
        return isinstance(self.pool.assertion(atom), ArrayShape)

    def _asked(self, atom: FormulaId, part: int) -> FormulaId:
        shape = self.pool.assertion(atom)
        assert isinstance(shape, ArrayShape)
        return shape.prefix[part] if part < len(shape.prefix) else shape.items

    @functools.cached_property
    def _horizon(self) -> int:
        """The position from which on all positions are alike."""
        bounds = [0]
        for atom in self.atoms:
            shape = self.pool.assertion(atom)
            if isinstance(shape, ArrayShape):
                bounds += [len(shape.prefix), shape.minimum, 0 if shape.maximum is None else shape.maximum + 1]
        if max(bounds) > _MAX_UNROLLED:
            raise LimitExceededError(
                f"alternatives that count up to {max(bounds)} items (at most {_MAX_UNROLLED} can be told apart)"
            )
        return max(bounds)

    def _derivative(self, literal: FormulaId, part: int, counts: Counts) -> Derivative:
        atom, positive, assertion = self.pool.asserted(literal)
        if isinstance(assertion, ItemCount):
            derivative = Derivative(assertion.items, self._counted(assertion), atom)
        else:
            assert isinstance(assertion, ArrayShape)
            full = assertion.maximum is not None and part >= assertion.maximum
            derivative = Derivative(FALSE if full else self._asked(atom, part), atom, FALSE)
        return derivative if positive else negated(self.pool, derivative)

    def _counted(self, count: ItemCount) -> FormulaId:
        """Return what remains of a count after one more item that satisfies it."""
        if count.maximum == 0:
            return FALSE
        minimum = max(count.minimum - 1, 0)
        maximum = None if count.maximum is None else count.maximum - 1
        if minimum == 0 and maximum is None:
            return TRUE
        return self.pool.atom(JsonType.ARRAY, ItemCount(count.items, minimum, maximum))

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        _, positive, assertion = self.pool.asserted(literal)
        if isinstance(assertion, ItemCount):
            return (assertion.minimum == 0) == positive
        assert isinstance(assertion, ArrayShape)
        # Beyond the maximum the literal has already become a constant.
        return (assertion.minimum <= node.last) == positive

    def most_items(self, node: Node) -> int:
        """Return the largest number of items before a node.

        Args:
            node: Node of the graph: the formulas that are undecided after these items.

        Returns:
            The number. ENOUGH - 1 (2**62 - 1) if the graph does not limit it.
        """
        return node.last if node.last < self._horizon else ENOUGH - 1


def _without_uniqueness(
    pool: FormulaPool, formulas: tuple[FormulaId, ...], within: tuple[FormulaId, ...]
) -> tuple[tuple[FormulaId, ...], tuple[FormulaId, ...]]:
    """Return the `uniqueItems` atoms that the demanded formula requires, and the formulas without any such atom.

    The recognizer enforces the required atoms. Each other atom is replaced by its formula over the listed values.

    Raises:
        NotDistinctError: An atom that is not required has no such formula.
    """
    insisted: list[FormulaId] = []
    values: dict[FormulaId, FormulaId] = {}
    for atom in pool.atoms(*formulas):
        unique = pool.assertion(atom)
        if not isinstance(unique, UniqueItems):
            continue
        if pool.substitute(formulas[0], {atom: FALSE}) == FALSE:
            insisted.append(atom)
            values[atom] = TRUE
        elif unique.once is not None:
            values[atom] = unique.once
        else:
            raise NotDistinctError(
                "here uniqueItems decides between alternatives (it is below not, oneOf or if, or arrays without it are "
                f"valid, too); that needs `items` with an `enum` of at most {MAX_UNIQUE} values in the same subschema",
                pointer=pool.keyword_pointer("uniqueItems", atom, within),
            )
    return tuple(insisted), tuple(pool.substitute(formula, values) for formula in formulas)
