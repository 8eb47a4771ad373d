"""Objects and arrays as small graphs: which part may come next, what it must satisfy, and what that leads to.

A node is what is still undecided about the container after some of its parts: the formulas, with assertions that can
no longer hold replaced by false, and the position. A move reads one more part (a property or an item): it calls a rule,
and the label that comes back picks the next node.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TypeAlias

from grammar_workers.errors import LimitExceededError
from grammar_workers.json_schema.formula import FALSE, TRUE, ArrayShape, FormulaId, FormulaPool, ObjectShape
from grammar_workers.json_schema.scalars import Label

FREE = -1
"""The part of a move that stands for every property name that is not declared."""
_MAX_UNROLLED = 1000
"""Array positions that are told apart when several alternatives count differently."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What a value must satisfy, and formulas about which the caller asks whether they hold.

    With `anyOf` of two objects, one value of a shared property may suit both, either or none, and what may follow
    depends on it. The answers are the *label* that the rule returns with, which keeps the machine deterministic: it is
    the determinisation of a visibly pushdown automaton (Alur and Madhusudan, "Visibly pushdown languages", 2004).
    """

    formula: FormulaId
    classifiers: tuple[FormulaId, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    formulas: tuple[FormulaId, ...]
    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """`part` is a property's index, FREE, or an item's position; `follow` maps the rule's label to a node or None."""

    part: int
    rule: Rule
    follow: Callable[[Label], Node | None]


@dataclasses.dataclass(frozen=True, slots=True)
class PlainObject:
    """An object about which nothing is left to decide but which property comes next.

    `properties` (name, rule) in order, the rule of every other property, and the indices of required ones.
    """

    properties: tuple[tuple[str, Rule], ...]
    additional: Rule
    required: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PlainArray:
    """The same for an array: rules of the first items and of all later ones, and how many there may be."""

    prefix: tuple[Rule, ...]
    items: Rule
    minimum: int
    maximum: int | None


Parts: TypeAlias = Callable[[FormulaId], FormulaId]


class Container:
    """One rule's objects or arrays. `formulas` are resolved for the type, the demanded one first."""

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self.pool = pool
        self.leaves = tuple(dict.fromkeys(leaf for formula in formulas for leaf in pool.leaves(formula)))
        self.start = Node(formulas, 0)
        self._conjunction = pool.conjunction(formulas[0])
        constant = all(formula in (TRUE, FALSE) for formula in formulas[1:])
        self.is_plain = self._conjunction is not None and constant
        """Whether a register can do what nodes would: a mere conjunction, and one label only."""

    @property
    def plain_label(self) -> Label:
        """The only label of a plain container."""
        return tuple(formula == TRUE for formula in self.start.formulas[1:])

    def _every(self, parts: Parts) -> Rule:
        """What all conjuncts together ask of one part."""
        assert self._conjunction is not None
        return Rule(self.pool.all_of(map(parts, self._conjunction)))

    def close(self, node: Node) -> Label | None:
        """The label if the container may end at `node`."""
        ended = self._settle(node, lambda leaf: TRUE if self._may_close(leaf, node.position) else FALSE)
        if ended.formulas[0] != TRUE:
            return None
        return tuple(formula == TRUE for formula in ended.formulas[1:])

    def moves(self, node: Node) -> Iterator[Move]:
        raise NotImplementedError

    def _may_close(self, leaf: FormulaId, position: int) -> bool:
        raise NotImplementedError

    def _settle(self, node: Node, verdict: Parts) -> Node:
        """`node` with each leaf replaced by what `verdict` says: a constant or the leaf itself."""
        formulas = tuple(self.pool.substitute(formula, verdict) for formula in node.formulas)
        return dataclasses.replace(node, formulas=formulas)

    def _move(self, node: Node, part: int, position: int, parts: Parts) -> Move | None:
        """The move over a part of which each leaf asks what `parts` says; None when nothing can satisfy it."""
        pool = self.pool
        node = self._settle(node, lambda leaf: FALSE if parts(leaf) == FALSE else leaf)
        demanded = node.formulas[0]
        if demanded == FALSE:
            return None
        wanted = pool.demand(demanded, parts)
        if wanted == FALSE:
            return None
        asked: dict[FormulaId, None] = {}
        for leaf in dict.fromkeys(leaf for formula in node.formulas for leaf in pool.leaves(formula)):
            asked.setdefault(parts(leaf))
        asked.pop(TRUE, None)

        def without(failed: frozenset[FormulaId]) -> Node | None:
            left = self._settle(node, lambda leaf: FALSE if parts(leaf) in failed else leaf)
            return None if left.formulas[0] == FALSE else dataclasses.replace(left, position=position)

        # What the demanded formula cannot do without, `wanted` implies: no need to ask.
        classifiers = tuple(formula for formula in asked if without(frozenset([formula])) is not None)

        def follow(label: Label) -> Node | None:
            return without(frozenset(f for f, holds in zip(classifiers, label, strict=True) if not holds))

        return Move(part, Rule(wanted, classifiers), follow)


class Objects(Container):
    """Properties come in declared order: that in which the schema's parts first name them, undeclared ones last."""

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        super().__init__(pool, formulas)
        self.shapes = {leaf: self._shape(leaf) for leaf in self.leaves}
        declared = dict.fromkeys(name for shape in self.shapes.values() for name, _ in shape.properties)
        declared.update(dict.fromkeys(name for shape in self.shapes.values() for name in shape.required))
        self.names = tuple(declared)
        order = {name: index for index, name in enumerate(self.names)}
        self._properties = {leaf: dict(shape.properties) for leaf, shape in self.shapes.items()}
        self._required = {leaf: sorted(order[name] for name in shape.required) for leaf, shape in self.shapes.items()}
        self.required = sorted({index for indices in self._required.values() for index in indices})

    def _shape(self, leaf: FormulaId) -> ObjectShape:
        shape = self.pool.assertion(leaf)
        assert isinstance(shape, ObjectShape)
        return shape

    def plain(self) -> PlainObject:
        """The object as a plain one; only where `is_plain`."""
        return PlainObject(
            tuple((name, self._every(functools.partial(self.property, name=name))) for name in self.names),
            self._every(lambda leaf: self.shapes[leaf].additional),
            tuple(self.required),
        )

    def property(self, leaf: FormulaId, name: str) -> FormulaId:
        """What a leaf asks of the property called `name`."""
        return self._properties[leaf].get(name, self.shapes[leaf].additional)

    def _misses(self, leaf: FormulaId, first: int, last: int) -> bool:
        return any(first <= index < last for index in self._required[leaf])

    def _may_close(self, leaf: FormulaId, position: int) -> bool:
        return not self._misses(leaf, position, len(self.names))

    def moves(self, node: Node) -> Iterator[Move]:
        for index in range(node.position, len(self.names) + 1):
            skipped = self._settle(node, functools.partial(self._after_skipping, node.position, index))
            if skipped.formulas[0] == FALSE:
                return
            if index < len(self.names):
                asked = functools.partial(self.property, name=self.names[index])
                move = self._move(skipped, index, index + 1, asked)
            else:
                move = self._move(skipped, FREE, index, lambda leaf: self.shapes[leaf].additional)
            if move is not None:
                yield move

    def _after_skipping(self, first: int, last: int, leaf: FormulaId) -> FormulaId:
        """Whatever requires a name that is passed over can no longer hold."""
        return FALSE if self._misses(leaf, first, last) else leaf


class Arrays(Container):
    """Items one after the other; positions are told apart as far as any shape does."""

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        super().__init__(pool, formulas)
        self.shapes: dict[FormulaId, ArrayShape] = {}
        for leaf in self.leaves:
            shape = pool.assertion(leaf)
            assert isinstance(shape, ArrayShape)
            self.shapes[leaf] = shape

    def plain(self) -> PlainArray:
        """The array as a plain one; only where `is_plain`."""
        assert self._conjunction is not None
        shapes = [self.shapes[leaf] for leaf in self._conjunction]
        bounded = [shape.maximum for shape in shapes if shape.maximum is not None]
        longest = max((len(shape.prefix) for shape in shapes), default=0)
        return PlainArray(
            tuple(self._every(functools.partial(self._item_of, position=position)) for position in range(longest)),
            self._every(lambda leaf: self.shapes[leaf].items),
            max((shape.minimum for shape in shapes), default=0),
            min(bounded, default=None),
        )

    @property
    def _horizon(self) -> int:
        """The position from which on all positions are alike."""
        bounds = [0]
        for shape in self.shapes.values():
            bounds += [len(shape.prefix), shape.minimum, 0 if shape.maximum is None else shape.maximum + 1]
        if max(bounds) > _MAX_UNROLLED:
            raise LimitExceededError(
                f"alternatives that count up to {max(bounds)} items (at most {_MAX_UNROLLED} can be told apart)"
            )
        return max(bounds)

    def _may_close(self, leaf: FormulaId, position: int) -> bool:
        return self.shapes[leaf].minimum <= position

    def item(self, leaf: FormulaId, position: int) -> FormulaId:
        """What a leaf asks of the item at `position`; FALSE where no item may be."""
        shape = self.shapes[leaf]
        if shape.maximum is not None and position >= shape.maximum:
            return FALSE
        return self._item_of(leaf, position)

    def _item_of(self, leaf: FormulaId, position: int) -> FormulaId:
        shape = self.shapes[leaf]
        return shape.prefix[position] if position < len(shape.prefix) else shape.items

    def moves(self, node: Node) -> Iterator[Move]:
        position = min(node.position + 1, self._horizon)
        move = self._move(node, node.position, position, lambda leaf: self.item(leaf, node.position))
        if move is not None:
            yield move
