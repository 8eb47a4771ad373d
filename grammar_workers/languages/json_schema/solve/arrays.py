"""Arrays: items one after the other, positions told apart as far as any assertion does."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.assertions import (
    ArrayShape,
    FormulaId,
    ItemCount,
    JsonType,
    UniqueItems,
)
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

_MAX_UNROLLED = 1000
"""Positions that are told apart when several alternatives count differently."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlainArray:
    """Demands of the first items and of all later ones, and how many there may be (None: no maximum)."""

    prefix: tuple[Demand, ...]
    items: Demand
    minimum: int
    maximum: int | None


class Arrays(DerivativeGraph):
    """The arrays of one demand: part i of a move is item i, and from the horizon on all items are one part.

    `unique` are assertions that no two items are equal, which is left to the recognizer. `once` says the same as a
    formula, which Arrays take with `listed`; None without such an assertion, and where no values are listed.
    `within`: the formulas around `formulas`, for messages.
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
        """True if the recognizer compares items with all earlier ones."""
        return bool(self.unique)

    @functools.cached_property
    def plain(self) -> PlainArray:
        """The array as a plain one; only where `is_plain`."""
        shapes = [shape for atom in self.atoms if isinstance(shape := self.pool.assertion(atom), ArrayShape)]
        bounded = [shape.maximum for shape in shapes if shape.maximum is not None]
        longest = max((len(shape.prefix) for shape in shapes), default=0)
        return PlainArray(
            tuple(self._every(self._item, position) for position in range(longest)),
            self._every(self._item, longest),
            max((shape.minimum for shape in shapes), default=0),
            min(bounded, default=None),
        )

    @property
    def seen_sets(self) -> int:
        """The sets of listed values that nodes would have to tell apart if `once` were demanded."""
        assert self.once is not None
        values = len(self.pool.conjuncts(self.once))
        atoms = self.pool.atoms(self.formulas[0])
        shapes = [self.pool.assertion(part) for part in self.pool.conjuncts(self.formulas[0]) if part in atoms]
        most = [one.maximum for one in shapes if isinstance(one, ArrayShape) and one.maximum is not None]
        return sum(math.comb(values, count) for count in range(min([values, *most]) + 1))

    def formula_of(self, position: int) -> FormulaId:
        """What a plain array asks of the item at a position, as its schema has it."""
        return self._formula_of_every(self._item, position)

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """At most one: no item can be passed over, so a node stands for one position."""
        move = self._move(node, first, min(first + 1, self._horizon), node.counts)
        if move is not None:
            yield move

    def _is_shape(self, atom: FormulaId) -> bool:
        return isinstance(self.pool.assertion(atom), ArrayShape)

    def _item(self, atom: FormulaId, position: int) -> FormulaId:
        shape = self.pool.assertion(atom)
        assert isinstance(shape, ArrayShape)
        return shape.prefix[position] if position < len(shape.prefix) else shape.items

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
        atom, positive = self.pool.split(literal)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, ItemCount):
            derivative = Derivative(assertion.items, self._counted(assertion), atom)
        else:
            assert isinstance(assertion, ArrayShape)
            full = assertion.maximum is not None and part >= assertion.maximum
            derivative = Derivative(FALSE if full else self._item(atom, part), atom, FALSE)
        return derivative if positive else negated(self.pool, derivative)

    def _counted(self, count: ItemCount) -> FormulaId:
        """The formula that is left of a count after one more item that satisfies it."""
        if count.maximum == 0:
            return FALSE
        minimum = max(count.minimum - 1, 0)
        maximum = None if count.maximum is None else count.maximum - 1
        if minimum == 0 and maximum is None:
            return TRUE
        return self.pool.atom(JsonType.ARRAY, ItemCount(count.items, minimum, maximum))

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        atom, positive = self.pool.split(literal)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, ItemCount):
            return (assertion.minimum == 0) == positive
        assert isinstance(assertion, ArrayShape)
        # Beyond the maximum the literal has already become a constant.
        return (assertion.minimum <= node.last) == positive

    def most_items(self, node: Node) -> int:
        """How many items there may be before a node."""
        return node.last if node.last < self._horizon else ENOUGH - 1


def _without_uniqueness(
    pool: FormulaPool, formulas: tuple[FormulaId, ...], within: tuple[FormulaId, ...]
) -> tuple[tuple[FormulaId, ...], tuple[FormulaId, ...]]:
    """The assertions `uniqueItems` that are left to the recognizer, and the formulas given them: those on which the
    demanded formula insists. Others are replaced by what they say about each listed value."""
    insisted: list[FormulaId] = []
    changes: dict[FormulaId, FormulaId] = {}
    for atom in pool.atoms(*formulas):
        unique = pool.assertion(atom)
        if not isinstance(unique, UniqueItems):
            continue
        if pool.rewrite(formulas[0], {atom: FALSE, pool.not_(atom): TRUE}) == FALSE:
            insisted.append(atom)
            changes |= {atom: TRUE, pool.not_(atom): FALSE}
        elif unique.once is not None:
            changes |= {atom: unique.once, pool.not_(atom): pool.not_(unique.once)}
        else:
            raise NotDistinctError(
                "here uniqueItems decides between alternatives (it is below not, oneOf or if, or arrays without it are "
                f"valid, too); that needs `items` with an `enum` of at most {MAX_UNIQUE} values in the same subschema",
                pointer=pool.keyword_pointer("uniqueItems", atom, within),
            )
    return tuple(insisted), tuple(pool.rewrite(formula, changes) for formula in formulas)
