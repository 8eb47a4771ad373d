"""Objects: properties in declared order, undeclared ones last, told apart by what their names match.

`any_order` has those whose properties come in any order.
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

_MAX_UNROLLED = 1000
"""The most numbers of properties that are told apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlainObject:
    """An object about which nothing is left to decide but which property comes next.

    `properties` (name, demand) in declared order, a demand per class of undeclared names, the indices of required ones.
    """

    properties: tuple[tuple[str, Demand], ...]
    classes: tuple[Demand, ...]
    required: tuple[int, ...]


class Objects(DerivativeGraph):
    """The objects of one demand, in declared order: that in which the parts of the schema first name the properties.

    Part i of a move is declared property i, part -1 - c an undeclared property of class c (`NameClasses`).
    """

    def __init__(
        self, pool: FormulaPool, formulas: tuple[FormulaId, ...], strings: Strings, *, distinct: bool = False
    ) -> None:
        self.is_distinct = distinct and _hinges_on_counts(pool, formulas)
        """True if undeclared names must differ from each other, so that each counts."""
        # What is not surely true of an object is not surely false, either, where undeclared names may repeat.
        asked_of = [] if self.is_distinct else list(enumerate(formulas[1:]))
        uncertain = [index for index, asked in asked_of if _is_uncertain(pool, asked)]
        super().__init__(pool, (*formulas, *(pool.not_(formulas[1 + index]) for index in uncertain)))
        self._label_size = len(formulas) - 1
        self._uncertain = list(enumerate(uncertain, self._label_size))
        self.has_doubts = False
        """True if something is left out because it is not certain how many undeclared properties there are."""
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
        """The names that the formulas mention, in declared order; those that are only required come last."""
        shapes = [shape for atom in pool.atoms(*formulas) if isinstance(shape := pool.assertion(atom), ObjectShape)]
        declared = dict.fromkeys(name for shape in shapes for name, _ in shape.properties)
        declared.update(dict.fromkeys(name for shape in shapes for name in shape.required))
        return tuple(declared)

    @property
    def class_count(self) -> int:
        """The number of classes of undeclared names."""
        return len(self.name_classes.classes)

    @functools.cached_property
    def plain(self) -> PlainObject:
        """The object as a plain one; only where `is_plain`."""
        required = {index for indices in self._required.values() for index in indices}
        return PlainObject(
            tuple(
                (name, Demand(FALSE) if index in self._unusable else self._every(self._asked, index))
                for index, name in enumerate(self.names)
            ),
            tuple(self._every(self._asked, -1 - c) for c in range(self.class_count)),
            tuple(sorted(required)),
        )

    def formula_of(self, index: int) -> FormulaId:
        """What a plain object asks of the declared property, as its schema has it."""
        return self._formula_of_every(self._asked, index)

    def node(self, formulas: tuple[FormulaId, ...], position: int, counts: Counts) -> Node:
        """It stands for the positions up to the first name that cannot be passed over without changing a formula."""
        return super().node(formulas, self._last(formulas, position), counts)

    def _last(self, formulas: tuple[FormulaId, ...], position: int) -> int:
        ends = self._ends(formulas)
        return ends[bisect.bisect_left(ends, position)]

    @memoized
    def _ends(self, formulas: tuple[FormulaId, ...]) -> list[int]:
        """The positions of names that some shape requires, in order, and the position behind all names."""
        atoms = {self.pool.split(literal)[0] for literal in self._literals(formulas)}
        required = {index for atom in atoms for index in self._required.get(atom, ())}
        return [*sorted(required), len(self.names)]

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
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
        """The node once the declared name at the last position has been passed over; None where it is required."""
        position = node.last
        if position == len(self.names):
            return None
        formulas = tuple([self._without(formula, position) for formula in node.formulas])
        return None if formulas[0] == FALSE else self.node(formulas, position + 1, node.counts)

    def label_at(self, node: Node) -> Label | None:
        """As where all later names have been passed over, which is what closing does with them."""
        passed = [node]
        while passed[-1] not in self._labels_at:
            skipped = self.skip(passed[-1])
            if skipped is None:
                last = passed[-1]
                # Where a name cannot be passed over, the container cannot end either.
                self._labels_at[last] = None if last.last < len(self.names) else self._certain_label(last)
            else:
                passed.append(skipped)
        label = self._labels_at[passed[-1]]
        self._labels_at.update(dict.fromkeys(passed, label))
        return label

    def _certain_label(self, node: Node) -> Label | None:
        """None, too, where it is not certain what the object satisfies: that is not generated."""
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
        """The formula that a shape or a test of names asks of the value of a property."""
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
        """The atoms of `formulas` that ask something of properties, those of broken shapes included."""
        named = self.pool.atoms(*formulas)
        broken = [found.atom for atom in named if isinstance(found := self.pool.assertion(atom), Broken)]
        return [atom for atom in (*named, *broken) if atom in self._open_atoms]

    def _move(self, node: Node, part: int, entry: int, counts: Counts) -> Move | None:
        """Most properties concern mere conjuncts alone, which stay as they are: no formula needs to be rewritten."""
        if part in self._unusable:
            return None
        mere, concerned = self._mere_conjuncts(node.formulas)
        if part in concerned:
            return super()._move(node, part, entry, counts)
        demand = self._conjunction_of(mere, part)
        return None if demand.formula == FALSE else Move(part, demand, entry, counts, None, {})

    @memoized
    def _conjunction_of(self, atoms: tuple[FormulaId, ...], part: int) -> Demand:
        """The demand of all of these atoms together on the value of a part."""
        return Demand(self.pool.canonical(self.pool.all_of(self._asked(atom, part) for atom in atoms)))

    @memoized
    def _mere_conjuncts(self, formulas: tuple[FormulaId, ...]) -> tuple[tuple[FormulaId, ...], frozenset[int]]:
        """The open atoms that are mere conjuncts of the demanded formula, and the parts that concern other atoms."""
        conjuncts = self._open_atoms.intersection(self.pool.conjuncts(formulas[0]))
        literals = self._literals(formulas)
        others = {self.pool.split(literal)[0] for literal in literals if literal not in conjuncts}
        concerned = frozenset().union(*map(self._concerned, others))
        return tuple([literal for literal in literals if literal in conjuncts]), concerned

    @memoized
    def _concerned(self, atom: FormulaId) -> frozenset[int]:
        """The parts of which an atom asks something, or all if reading any of them may change it."""
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
            # Mostly one and the same set: thousands of shapes must not have one of thousands of parts each.
            return self._all_parts
        self.pool.spend(len(self._all_parts))
        return self._all_parts.difference(free)

    def _derivative(self, literal: FormulaId, part: int, counts: Counts) -> Derivative:
        if not self._has_counts:
            return self._uncounted_derivative(literal, part)
        atom, positive = self.pool.split(literal)
        count = self.pool.assertion(atom)
        if not isinstance(count, PropertyCount):
            return self._uncounted_derivative(literal, part)
        exceeded = count.maximum is not None and counts.certain > count.maximum
        too_many = count.maximum is not None and counts.total > count.maximum
        if positive:
            return Derivative(TRUE, FALSE, FALSE) if too_many else Derivative(TRUE, atom, atom)
        return Derivative(TRUE, TRUE, TRUE) if exceeded else Derivative(TRUE, literal, literal)

    @memoized
    def _uncounted_derivative(self, literal: FormulaId, part: int) -> Derivative:
        """The derivative of a literal that no count decides: it depends on the part alone."""
        atom, positive = self.pool.split(literal)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, Broken):
            asked = self._asked(assertion.atom, part) if part < 0 else TRUE
            if asked == TRUE:
                # What keeps to the shape under every value has another name than what has broken it.
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
        """The formula that is left when a declared name is passed over: whatever requires it can no longer hold."""
        changes = {}
        for literal in self.pool.literals(formula):
            atom, positive = self.pool.split(literal)
            if index in self._required.get(atom, ()):
                changes[literal] = FALSE if positive else TRUE
        return self.pool.rewrite(formula, changes)

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
        """The counts after one more property. Of undeclared names that may repeat, the first alone surely counts."""
        counts, horizon = node.counts, self._horizon
        if not horizon:
            return counts
        certain = counts.certain + (self.is_distinct or part >= 0 or not counts.undeclared)
        undeclared = not self.is_distinct and (counts.undeclared or part < 0)
        return Counts(min(certain, horizon), min(counts.total + 1, horizon), undeclared, counts.seen)

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        atom, positive = self.pool.split(literal)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, PropertyCount):
            # A maximum that is exceeded has already become a constant, one that perhaps is has not.
            certain, total = node.counts.certain, node.counts.total
            holds = assertion.minimum <= certain if positive else total < assertion.minimum
            too_few = certain < assertion.minimum <= total
            self.has_doubts |= too_few or (not positive and not holds and total > certain)
            return holds
        # Shapes that require a name which has been passed over have already become constants.
        return positive

    def most_properties(self, node: Node) -> int:
        """How many properties there may be before a node."""
        return node.counts.total if node.counts.total < self._horizon else ENOUGH - 1


def _hinges_on_counts(pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> bool:
    """True if it must be known how many properties there are, not only that there are not too many or none."""
    asked = pool.atoms(*formulas[1:])
    for literal in pool.literals(formulas[0]):
        atom, positive = pool.split(literal)
        count = pool.assertion(atom)
        if isinstance(count, PropertyCount) and (count.minimum > 1 or not positive):
            return True
    return any(isinstance(pool.assertion(atom), PropertyCount) for atom in asked)


def _is_uncertain(pool: FormulaPool, formula: FormulaId) -> bool:
    """True if undeclared properties of one name may leave open whether an object satisfies a resolved formula."""
    for atom in pool.atoms(formula):
        assertion = pool.assertion(atom)
        if isinstance(assertion, PropertyCount):
            return True
        if isinstance(assertion, ObjectShape):
            asked = [assertion.additional, *(value for _, value in assertion.patterns)]
            if not all(value in (TRUE, FALSE) for value in asked):
                return True
    return False
