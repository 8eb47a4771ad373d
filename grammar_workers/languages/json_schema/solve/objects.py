"""Derivative graphs of objects: declared properties in declared order, then undeclared ones.

A *node* of the graph has the formulas that are undecided after some properties. A *move* reads one more property.
Undeclared properties are distinguished by the tests that their names pass. `any_order` has the objects whose properties
come in any order.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Collection, Hashable, Iterator

from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.assertions import (
    Broken,
    FormulaId,
    JsonType,
    ObjectShape,
    PropertyCount,
    PropertyNames,
)
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve.derivatives import (
    Counts,
    Demand,
    Derivative,
    DerivativeGraph,
    Move,
    Node,
    negated,
)
from grammar_workers.languages.json_schema.solve.name_classes import NameClasses
from grammar_workers.languages.json_schema.solve.sizes import ENOUGH
from grammar_workers.languages.json_schema.solve.strings import Strings
from grammar_workers.memo import memoized

# Largest number of properties that nodes count.
_MAX_UNROLLED = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class PlainObject:
    """Objects in which each property has one fixed demand (formula for its value). Only the names are left to choose.

    Attributes:
        properties: Demand of the value of each declared name, in declared order.
        classes: Demand of the value for each class of undeclared names (`NameClasses`), by class number.
        required: Indices of the required names in `properties`, ascending.
    """

    properties: tuple[Demand, ...]
    classes: tuple[Demand, ...]
    required: tuple[int, ...]

    @property
    def children(self) -> tuple[Demand, ...]:
        """Demands of the values of all properties."""
        return self.classes + self.properties


class Objects(DerivativeGraph):
    """Graph of the objects of one demand (formula for a value), with properties in declared order.

    A node has the formulas that are undecided after some properties. Names are declared in the order in which the
    formulas first mention them. A *part* is the number of a property: part i is declared property i, and part -1 - c is
    an undeclared property whose name is in class c (`NameClasses`).

    Args:
        pool: Table of all formulas.
        formulas: The demanded formula, then the tested ones, all resolved (reduced to values of one type) for objects.
        strings: The languages of strings, for property names.
        distinct: True to require unique undeclared names if a formula counts properties.

    Attributes:
        names: The declared names in declared order.
        name_classes: The classes of undeclared names.
        is_distinct: True if undeclared names must be unique, so that each of them counts.
        has_doubts: True if objects are excluded because it is not certain that they satisfy the formulas.
    """

    def __init__(
        self, pool: FormulaPool, formulas: tuple[FormulaId, ...], strings: Strings, *, distinct: bool = False
    ) -> None:
        self.is_distinct = distinct and _hinges_on_counts(pool, formulas)
        # If undeclared names may repeat, a formula that is not certainly true need not be certainly false.
        asked_of = [] if self.is_distinct else list(enumerate(formulas[1:]))
        uncertain = [index for index, asked in asked_of if _is_uncertain(pool, asked)]
        super().__init__(pool, (*formulas, *(pool.not_(formulas[1 + index]) for index in uncertain)))
        self._label_size = len(formulas) - 1
        self._uncertain = list(enumerate(uncertain, self._label_size))
        self.has_doubts = False
        assertions = {atom: pool.assertion(atom) for atom in self.atoms}
        self._shapes = {atom: shape for atom, shape in assertions.items() if isinstance(shape, ObjectShape)}
        self._has_counts = any(isinstance(assertion, PropertyCount) for assertion in assertions.values())
        self.names = self.declared_names(pool, formulas)
        self.name_classes = NameClasses(self.names, list(assertions.values()), strings)
        if self.is_distinct and (few := self.name_classes.few_names(self._horizon)):
            self.names = (*self.names, *few)
            self.name_classes = NameClasses(self.names, list(assertions.values()), strings)
        self._order = order = {name: index for index, name in enumerate(self.names)}
        unusable = [*self.name_classes.disputed, *(name for name in self.names if not strings.can_name(name))]
        self._unusable = frozenset(order[name] for name in unusable)
        self._properties = {atom: dict(shape.properties) for atom, shape in self._shapes.items()}
        self._required = {atom: sorted(order[name] for name in shape.required) for atom, shape in self._shapes.items()}
        self._open_atoms = frozenset(atom for atom in self.atoms if self._is_shape(atom))
        self._all_parts = frozenset(range(-self.class_count, len(self.names)))
        self._labels_at: dict[Node, Label | None] = {}

    @staticmethod
    def declared_names(pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> tuple[str, ...]:
        """Return the names that formulas about objects declare, in declared order, then names that they only require.

        Args:
            pool: Table of all formulas.
            formulas: Numbers of formulas that are resolved (reduced to values of one type) for objects.
        """
        shapes = [shape for atom in pool.atoms(*formulas) if isinstance(shape := pool.assertion(atom), ObjectShape)]
        declared = dict.fromkeys(name for shape in shapes for name, _ in shape.properties)
        declared.update(dict.fromkeys(name for shape in shapes for name in shape.required))
        return tuple(declared)

    @property
    def class_count(self) -> int:
        """Number of classes of undeclared names (`NameClasses`)."""
        return len(self.name_classes.classes)

    @functools.cached_property
    def plain(self) -> PlainObject:
        """Demands (formulas) of all properties. Only valid if `is_plain` is true: each property has one demand."""
        required = {index for indices in self._required.values() for index in indices}
        return PlainObject(
            tuple(Demand(FALSE) if i in self._unusable else self._plain_demand(i) for i in range(len(self.names))),
            tuple(self._plain_demand(-1 - number) for number in range(self.class_count)),
            tuple(sorted(required)),
        )

    def node(self, formulas: tuple[FormulaId, ...], position: int, counts: Counts) -> Node:
        """Return the node (undecided formulas and counts) for a position among the declared names.

        The node also covers the later positions up to the first name that a formula requires. Skipping the names before
        the required one changes no formula.

        Args:
            formulas: The undecided formulas: the demanded one, then the tested ones.
            position: Index of the next declared name, 0 to len(names).
            counts: Counts of the properties read so far.
        """
        return super().node(formulas, self._last(formulas, position), counts)

    def _last(self, formulas: tuple[FormulaId, ...], position: int) -> int:
        ends = self._ends(formulas)
        return ends[bisect.bisect_left(ends, position)]

    @memoized
    def _ends(self, formulas: tuple[FormulaId, ...]) -> list[int]:
        """Return the positions of the names that some shape requires, in order, and the position after all names."""
        atoms = {self.pool.split(literal)[0] for literal in self._literals(formulas)}
        required = {index for atom in atoms for index in self._required.get(atom, ())}
        return [*sorted(required), len(self.names)]

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """Yield the moves (each reads one property): declared names, then undeclared ones if no later name is required.

        Args:
            node: Node (undecided formulas and counts) before the property.
            first: Index of the first declared name to consider.
            stop: Index at which the node was entered before. Moves from this index on, and moves over undeclared names,
                are omitted. None if the node was not entered before.
        """
        many = len(self.names)
        declared = range(first, min(many, node.last + 1) if stop is None else stop)
        moves = (self._move(node, part, part + 1, self._counted(node, part)) for part in declared)
        yield from filter(None, moves)
        if stop is None and node.last == many:
            yield from self._undeclared_moves(node)

    def _undeclared_moves(self, node: Node) -> Iterator[Move]:
        undeclared = range(-1, -1 - self.class_count, -1)
        return filter(None, (self._move(node, part, node.last, self._counted(node, part)) for part in undeclared))

    def skip(self, node: Node) -> Node | None:
        """Return the node after skipping the last declared name that `node` covers. None if it must not be skipped."""
        position = node.last
        if position == len(self.names):
            return None
        formulas = tuple([self._without(formula, position) for formula in node.formulas])
        return None if formulas[0] == FALSE else self.node(formulas, position + 1, node.counts)

    def label_at(self, node: Node) -> Label | None:
        """Return the label (truth values of the tested formulas) of an object that closes at `node`.

        All later declared names are skipped.

        Returns:
            The label. None if the object may not close, or if a truth value is uncertain because undeclared names may
            repeat.
        """
        passed = [node]
        while passed[-1] not in self._labels_at:
            skipped = self.skip(passed[-1])
            if skipped is None:
                last = passed[-1]
                # Where a name cannot be skipped, the container cannot end.
                self._labels_at[last] = None if last.last < len(self.names) else self._certain_label(last)
            else:
                passed.append(skipped)
        label = self._labels_at[passed[-1]]
        self._labels_at.update(dict.fromkeys(passed, label))
        return label

    def _certain_label(self, node: Node) -> Label | None:
        """Return the label; None also if it is uncertain. Such an object is not generated."""
        truths = super().label_at(node)
        if truths is None:
            return None
        if any(truths[index] == truths[negated] for negated, index in self._uncertain):
            self.has_doubts = True
            return None
        return truths[: self._label_size]

    # -- steps -----------------------------------------------------------------------------------------------------

    def _is_shape(self, atom: FormulaId) -> bool:
        return isinstance(self.pool.assertion(atom), ObjectShape | PropertyNames)

    @memoized
    def _asked(self, atom: FormulaId, part: int) -> FormulaId:
        """Return the formula that a shape, or a test of names, requires of the value of a property."""
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, PropertyNames):
            return TRUE if self.name_classes.matches(part, assertion.names) else FALSE
        assert isinstance(assertion, ObjectShape)
        declared = self._properties[atom].get(self.names[part]) if part >= 0 else None
        if not assertion.patterns:
            return assertion.additional if declared is None else declared
        asked = [formula for source, formula in assertion.patterns if self.name_classes.matches(part, source)]
        if declared is not None:
            asked.insert(0, declared)
        return self.pool.all_of(asked) if asked else assertion.additional

    def _kind(self, formulas: tuple[FormulaId, ...], part: int) -> Hashable:
        return (part < 0, *[self._asked(atom, part) for atom in self._asking(formulas)])

    @memoized
    def _asking(self, formulas: tuple[FormulaId, ...]) -> list[FormulaId]:
        """Return the atoms of `formulas` that require something of properties, those of broken shapes included."""
        named = self.pool.atoms(*formulas)
        broken = [found.atom for atom in named if isinstance(found := self.pool.assertion(atom), Broken)]
        return [atom for atom in (*named, *broken) if atom in self._open_atoms]

    def _move(self, node: Node, part: int, entry: int, counts: Counts) -> Move | None:
        """Return the move over a part.

        Most properties concern only conjuncts that stay as they are: no formula needs to be rewritten for them.
        """
        if part in self._unusable:
            return None
        mere, concerned = self._mere_conjuncts(node.formulas)
        if part in concerned:
            return super()._move(node, part, entry, counts)
        demand = self._conjunction_of(mere, part)
        return None if demand.formula == FALSE else Move(part, demand, entry, counts, None, {})

    @memoized
    def _conjunction_of(self, atoms: tuple[FormulaId, ...], part: int) -> Demand:
        """Return the demand of all these atoms together on the value of a part."""
        return Demand(self.pool.canonical(self.pool.all_of(self._asked(atom, part) for atom in atoms)))

    @memoized
    def _mere_conjuncts(self, formulas: tuple[FormulaId, ...]) -> tuple[tuple[FormulaId, ...], frozenset[int]]:
        """Return the conjuncts of the demanded formula about properties, and the parts that concern other atoms."""
        conjuncts = self._open_atoms.intersection(self.pool.conjuncts(formulas[0]))
        literals = self._literals(formulas)
        others = {self.pool.split(literal)[0] for literal in literals if literal not in conjuncts}
        concerned = frozenset().union(*map(self._concerned, others))
        return tuple([literal for literal in literals if literal in conjuncts]), concerned

    @memoized
    def _concerned(self, atom: FormulaId) -> frozenset[int]:
        """Return the parts of which an atom requires something; all parts if reading any of them may change it."""
        if atom not in self._open_atoms:
            return self._all_parts
        shape = self._shapes.get(atom)
        parts: Collection[int] = self._all_parts
        if shape is not None and not shape.patterns:
            parts = [self._order[name] for name in self._properties[atom]]
        self.pool.spend(len(parts) + 1)
        free = [part for part in parts if self._asked(atom, part) == TRUE]
        if shape is not None and not shape.patterns and shape.additional == TRUE:
            return frozenset(parts).difference(free)
        if not free:
            # A shared set: thousands of shapes must not each hold a set of thousands of parts.
            return self._all_parts
        self.pool.spend(len(self._all_parts))
        return self._all_parts.difference(free)

    def _derivative(self, literal: FormulaId, part: int, counts: Counts) -> Derivative:
        if not self._has_counts:
            return self._uncounted_derivative(literal, part)
        atom, positive, count = self.pool.asserted(literal)
        if not isinstance(count, PropertyCount):
            return self._uncounted_derivative(literal, part)
        exceeded = count.maximum is not None and counts.certain > count.maximum
        too_many = count.maximum is not None and counts.total > count.maximum
        if positive:
            return Derivative(TRUE, FALSE, FALSE) if too_many else Derivative(TRUE, atom, atom)
        return Derivative(TRUE, TRUE, TRUE) if exceeded else Derivative(TRUE, literal, literal)

    @memoized
    def _uncounted_derivative(self, literal: FormulaId, part: int) -> Derivative:
        """Return the derivative of a literal that is not about counts: it depends only on the part."""
        atom, positive, assertion = self.pool.asserted(literal)
        if isinstance(assertion, Broken):
            asked = self._asked(assertion.atom, part) if part < 0 else TRUE
            if asked == TRUE:
                # Every value of this name satisfies the shape, so another name has violated it.
                return Derivative(TRUE, literal, literal)
            self.has_doubts |= asked != FALSE
            return Derivative(asked, FALSE, literal)
        derivative = Derivative(self._asked(atom, part), atom, FALSE)
        if positive:
            return derivative
        if part < 0 and not self.is_distinct and isinstance(assertion, ObjectShape) and derivative.asked != FALSE:
            return Derivative(derivative.asked, literal, self.pool.atom(JsonType.OBJECT, Broken(atom)))
        return negated(self.pool, derivative)

    @memoized
    def _without(self, formula: FormulaId, index: int) -> FormulaId:
        """Return what remains of a formula after a declared name is skipped: no atom that requires it is true."""
        required = [atom for atom in self.pool.atoms(formula) if index in self._required.get(atom, ())]
        return self.pool.substitute(formula, dict.fromkeys(required, FALSE))

    # -- counts ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _horizon(self) -> int:
        """The number of properties from which on more make no difference."""
        bounds = [0]
        for atom in self.atoms:
            count = self.pool.assertion(atom)
            if isinstance(count, PropertyCount):
                bounds += [count.minimum, 0 if count.maximum is None else count.maximum + 1]
        if max(bounds) > _MAX_UNROLLED:
            raise LimitExceededError(f"counts of up to {max(bounds)} properties (at most {_MAX_UNROLLED})")
        return max(bounds)

    def _counted(self, node: Node, part: int) -> Counts:
        """Return the counts after one more property. Of undeclared names that may repeat, only one certainly counts."""
        counts, horizon = node.counts, self._horizon
        if not horizon:
            return counts
        certain = counts.certain + (self.is_distinct or part >= 0 or not counts.undeclared)
        undeclared = not self.is_distinct and (counts.undeclared or part < 0)
        return Counts(min(certain, horizon), min(counts.total + 1, horizon), undeclared, counts.seen)

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        _, positive, assertion = self.pool.asserted(literal)
        if isinstance(assertion, PropertyCount):
            # A maximum that is certainly exceeded has already become a constant; one that may be exceeded has not.
            certain, total = node.counts.certain, node.counts.total
            holds = assertion.minimum <= certain if positive else total < assertion.minimum
            too_few = certain < assertion.minimum <= total
            self.has_doubts |= too_few or (not positive and not holds and total > certain)
            return holds
        # Shapes that require a skipped name have already become constants.
        return positive

    def most_properties(self, node: Node) -> int:
        """Return the largest number of properties read before a node.

        Args:
            node: Node of the graph: the formulas that are undecided after these properties.

        Returns:
            The number. ENOUGH - 1 (2**62 - 1) if the graph does not limit it.
        """
        return node.counts.total if node.counts.total < self._horizon else ENOUGH - 1


def _hinges_on_counts(pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> bool:
    """Return whether the number of properties must be known, beyond a maximum and a minimum of one."""
    asked = pool.atoms(*formulas[1:])
    for literal in pool.literals(formulas[0]):
        _, positive, count = pool.asserted(literal)
        if isinstance(count, PropertyCount) and (count.minimum > 1 or not positive):
            return True
    return any(isinstance(pool.assertion(atom), PropertyCount) for atom in asked)


def _is_uncertain(pool: FormulaPool, formula: FormulaId) -> bool:
    """Return whether repeated undeclared names may leave the truth of a resolved formula uncertain."""
    for atom in pool.atoms(formula):
        assertion = pool.assertion(atom)
        if isinstance(assertion, PropertyCount):
            return True
        if isinstance(assertion, ObjectShape):
            asked = [assertion.additional, *(value for _, value in assertion.patterns)]
            if not all(value in (TRUE, FALSE) for value in asked):
                return True
    return False
