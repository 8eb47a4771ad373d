"""Derivative graphs of objects and arrays: Brzozowski's derivatives (1964), with items and properties as characters.

A *part* is a property of an object or an item of an array. A *node* has the formulas that are undecided after some
parts, and counts of these parts. A *move* reads one more part. It calls a *demand*: a formula that the part's value
must satisfy, with formulas to test. The *label* of the value, which has the truth values of the tested formulas,
selects the next node. For example, the objects of

    {"anyOf": [{"properties": {"a": X}, "required": ["b"]}, {"properties": {"a": Y}}]}

have this graph, in which P and Q are the alternatives:

    node 0    P or Q                 reading "a" calls the demand (X or Y, testing X, Y)
              label (true, true)     P or Q again: node 0
              label (true, false)    P: the node 1, which may end only after "b"
              label (false, true)    Q: the node 2, which may end at once

Skipping a name usually changes no formula. So a node covers all positions between which nothing changes. It is
*entered* at one of them, and only the parts from this position on may follow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve.text_language import fixed_label
from grammar_workers.memo import memoized


# These are plain tuples because they are created, hashed and compared for every move between nodes.
class Demand(NamedTuple):
    """A formula that a value must satisfy, and further formulas to test on the value.

    The truth values of the tested formulas are the *label* of the value. The states that read the value return its
    label to their caller, so that the automaton stays deterministic. For example, with `anyOf` of two objects, the
    value of a common property may satisfy one alternative or both. The label shows the satisfied alternatives, and so
    determines the properties that may follow.

    Attributes:
        formula: Number of the formula that the value must satisfy.
        questions: Numbers of the tested formulas.

    Reference: Alur and Madhusudan 2004, "Visibly pushdown languages" (determinization).
    """

    formula: FormulaId
    questions: tuple[FormulaId, ...] = ()


class Counts(NamedTuple):
    """Counts of the properties of an object. Counting stops at the largest number that a formula distinguishes.

    Undeclared names may repeat, so only bounds of the number of distinct names are known.

    Attributes:
        certain: Lower bound of the number of properties.
        total: Upper bound of the number of properties.
        undeclared: True if an undeclared property, whose name may repeat, has been read.
        seen: Indices of the declared properties that have been read and on which the formulas depend. Empty unless
            properties come in any order.
    """

    certain: int = 0
    total: int = 0
    undeclared: bool = False
    seen: frozenset[int] = frozenset()


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """The undecided formulas and the counts after some items of an array or some properties of an object.

    Nodes are compared by identity, because `DerivativeGraph.node` creates each node only once.

    Attributes:
        formulas: The undecided formulas: the demanded one, then the tested ones.
        last: Last position (index of the next item or declared property) that the node covers.
        counts: Counts of the properties read so far.
    """

    formulas: tuple[FormulaId, ...]
    last: int
    counts: Counts


class Ending(NamedTuple):
    """Condition for the end of an object: some declared properties have been read, and their values satisfy demands.

    Attributes:
        parts: Indices of these declared properties, ascending; () if the condition always holds.
        demands: For each of `parts` the demand (formula for the value).
    """

    parts: tuple[int, ...] = ()
    demands: tuple[Demand, ...] = ()


class Derivative(NamedTuple):
    """The formulas that replace a literal (assertion or negated assertion) after an item or property has been read.

    For example, the derivative of the assertion S = {"properties": {"a": X}} by the property "a" is (X, S, FALSE). If
    the value of "a" satisfies X, S remains. Otherwise S has become false.

    Attributes:
        asked: The formula to test on the value.
        if_true: The formula that replaces the literal if the value satisfies `asked`.
        if_false: The formula that replaces the literal if the value does not satisfy `asked`.
    """

    asked: FormulaId
    if_true: FormulaId
    if_false: FormulaId


@dataclasses.dataclass(slots=True)
class Transition:
    """The change of the formulas of a node when an item or a property is read.

    Attributes:
        demand: The demand (formula to satisfy, and formulas to test) on the value of the item or property.
        formulas: The formulas before the item or property is read.
        derivatives: Literal of `formulas` -> its derivative.
        truths: Formula -> its truth value, for formulas that need no test, because the truth value is known or does not
            matter.
        after: Cache: label (truth values of the tested formulas) -> the formulas afterwards. None as a value means that
            the demanded formula has become false.
    """

    demand: Demand
    formulas: tuple[FormulaId, ...]
    derivatives: dict[FormulaId, Derivative]
    truths: dict[FormulaId, bool]
    after: dict[Label, tuple[FormulaId, ...] | None] = dataclasses.field(default_factory=dict)


class Move(NamedTuple):
    """Move at a node: it reads one item of an array, or one property of an object.

    Attributes:
        part: Index of the item or of the declared property. -1 - c for an undeclared property with a name of class c.
        demand: The demand (formula to satisfy, and formulas to test) on the value.
        entry: Position (index of the next item or declared name) at which the next nodes are entered.
        counts: Counts of the properties including this one.
        transition: The change of the formulas; None if no formula changes.
        targets: Label of the value (truth values of the tested formulas) -> next node. None as a value means that the
            array or object cannot continue. `Exploration` fills the dict as it finds labels.
    """

    part: int
    demand: Demand
    entry: int
    counts: Counts
    transition: Transition | None
    targets: dict[Label, Node | None]


class DerivativeGraph:
    """Graph of nodes and moves for the arrays or the objects of one demand (formula for a value), created lazily.

    A node has the formulas that are undecided after some items or properties. A move reads one more item or property.
    Subclasses define the positions and the numbering of items and properties.

    Args:
        pool: Table of all formulas.
        formulas: The demanded formula, then the tested ones, all resolved (reduced to values of one type) for arrays or
            for objects.

    Attributes:
        pool: The argument `pool`.
        formulas: The argument `formulas`.
        atoms: The distinct atoms (formulas of single assertions) of the formulas.
        is_plain: True if a counter can replace the nodes.
        plain_label: The only possible label (truth values of the tested formulas), if `is_plain` is true.
    """

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self.pool = pool
        self.formulas = formulas
        self.atoms = pool.atoms(*formulas)
        self._conjunction = pool.conjunction(formulas[0])
        fixed = fixed_label(formulas)
        # A counter can replace the nodes if the formula is a conjunction of shapes and only one label is possible.
        self.is_plain = self._conjunction is not None and fixed is not None and all(map(self._is_shape, self.atoms))
        self.plain_label: Label = fixed or ()
        self._transitions: dict[tuple[tuple[FormulaId, ...], Hashable, int, int], Transition | None] = {}

    @functools.cached_property
    def start(self) -> Node:
        """Node (undecided formulas) before all items or properties, entered at position 0."""
        return self.node(self.formulas, 0, Counts())

    @memoized
    def node(self, formulas: tuple[FormulaId, ...], position: int, counts: Counts) -> Node:
        """Return the node with the given formulas and counts that covers `position`. It is created only once.

        Args:
            formulas: The undecided formulas: the demanded one, then the tested ones.
            position: Index of the next item or declared property.
            counts: Counts of the properties read so far.
        """
        return Node(formulas, position, counts)

    def label_at(self, node: Node) -> Label | None:
        """Return the label (truth values of the tested formulas) of an array or object that ends at `node`.

        Returns:
            The label. None if the array or object may not end, because the demanded formula would be false.
        """

        def truth(literal: FormulaId) -> bool:
            return self._holds_at_end(literal, node)

        demanded, *asked = node.formulas
        return tuple(self.pool.holds(formula, truth) for formula in asked) if self.pool.holds(demanded, truth) else None

    def endings(self, node: Node) -> tuple[Ending, ...]:
        """Return the conditions for an array or object to end at `node`. At least one of them must hold.

        Args:
            node: Node (undecided formulas and counts) at which the array or object may end: `label_at` returns a label
                for it.
        """
        return (Ending(),)

    def skip(self, node: Node) -> Node | None:
        """Return the node after skipping the item or property at the last position of `node`. None if it is required.

        The returned node is entered at the position after the skipped one. At both nodes, an array or object that ends
        has the same label (truth values of the tested formulas). From `node`, the moves of the returned node are
        possible in addition to the moves of `node` itself.
        """
        return None

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """Yield the moves (transitions that read one item or property) from `node`, in the order of their positions.

        A position is the index of the next item or declared property that may be read.

        Args:
            node: The node (undecided formulas and counts).
            first: First position whose moves are yielded.
            stop: Position before which to end. The graph passes the `first` of an earlier call for this node, whose
                moves it already has. None if this is the first call for the node.
        """
        raise NotImplementedError

    def _derivative(self, literal: FormulaId, part: int, counts: Counts) -> Derivative:
        """Return the derivative of a literal by a part after which `counts` has been counted."""
        raise NotImplementedError

    def _is_shape(self, atom: FormulaId) -> bool:
        """Return whether the plain form of the container can express this atom."""
        raise NotImplementedError

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        """Return the truth value of `literal` if the container ends at `node`."""
        raise NotImplementedError

    def _asked(self, atom: FormulaId, part: int) -> FormulaId:
        """Return the formula that an atom, which is a shape, requires of the value of a part."""
        raise NotImplementedError

    def _plain_demand(self, part: int) -> Demand:
        """Return the demand of a plain container on a part. Its formula is canonical (see `formula_of`)."""
        return Demand(self.pool.canonical(self.formula_of(part)))

    def formula_of(self, part: int) -> FormulaId:
        """Return the formula of an item or property as its schemas state it. Only valid if `is_plain` is true.

        The demand on the item or property has a canonical formula instead. Its meaning is equal, but its JSON Pointers
        may be those of another schema.

        Args:
            part: Index of the item or of the declared property. -1 - c for an undeclared property with a name of class
                c.
        """
        assert self._conjunction is not None
        if len(self._conjunction) == 1:
            return self._asked(self._conjunction[0], part)
        return self.pool.all_of([self._asked(atom, part) for atom in self._conjunction])

    def _move(self, node: Node, part: int, entry: int, counts: Counts) -> Move | None:
        """Return the move over a part that enters the next node at `entry`; None if no value satisfies it."""
        formulas = node.formulas
        # Most nodes share their formulas with other nodes, so transitions are cached by formulas.
        identity = (formulas, self._kind(formulas, part), counts.certain, counts.total)
        if identity in self._transitions:
            transition = self._transitions[identity]
        else:
            transition = self._transitions[identity] = self._transition(formulas, part, counts)
        return None if transition is None else Move(part, transition.demand, entry, counts, transition, {})

    def _kind(self, formulas: tuple[FormulaId, ...], part: int) -> Hashable:
        """Return a key of the parts that have equal derivatives for `formulas`: they share a transition."""
        return part

    def _transition(self, formulas: tuple[FormulaId, ...], part: int, counts: Counts) -> Transition | None:
        pool = self.pool
        derivatives = {literal: self._derivative(literal, part, counts) for literal in self._literals(formulas)}
        needed = {literal: _needed(pool, derivative) for literal, derivative in derivatives.items()}
        wanted = pool.rewrite(formulas[0], needed)
        if wanted == FALSE:
            return None
        truths = {TRUE: True, FALSE: False}
        for literal in pool.conjuncts(formulas[0]):
            if literal in derivatives and derivatives[literal].if_false == FALSE:
                truths.setdefault(derivatives[literal].asked, True)
        questions: list[FormulaId] = []
        for asked in dict.fromkeys(each.asked for each in derivatives.values() if each.if_true != each.if_false):
            if asked in truths:
                continue
            concerned = {literal: each for literal, each in derivatives.items() if each.asked == asked}
            # A formula that `wanted` implies or excludes is not tested.
            if pool.rewrite(formulas[0], needed | _possible(concerned, False)) == FALSE:
                truths[asked] = True
            elif pool.rewrite(formulas[0], needed | _possible(concerned, True)) == FALSE:
                truths[asked] = False
            else:
                questions.append(asked)
        for derivative in derivatives.values():
            if derivative.if_true == derivative.if_false:
                truths.setdefault(derivative.asked, True)
        return Transition(Demand(pool.canonical(wanted), tuple(questions)), formulas, derivatives, truths)

    def follow(self, node: Node, move: Move, label: Label) -> Node | None:
        """Return the next node after a move whose value has a given label.

        Args:
            node: The node before the move.
            move: A move of `node`.
            label: Truth values of the formulas that `move.demand` tests on the value.

        Returns:
            The next node. None if the demanded formula has become false.
        """
        formulas = node.formulas if move.transition is None else self._after(move.transition, label)
        if formulas is None:
            return None
        if formulas == node.formulas and move.counts == node.counts and move.entry <= node.last:
            return node
        return self.node(formulas, move.entry, move.counts)

    def _after(self, transition: Transition, label: Label) -> tuple[FormulaId, ...] | None:
        known = transition.after
        if label not in known:
            truths = transition.truths | dict(zip(transition.demand.questions, label, strict=True))
            changes = _outcomes(transition.derivatives, truths)
            formulas = tuple([self.pool.rewrite(formula, changes) for formula in transition.formulas])
            known[label] = None if formulas[0] == FALSE else formulas
        return known[label]

    def _literals(self, formulas: tuple[FormulaId, ...]) -> list[FormulaId]:
        """Return the distinct literals of all formulas, in order."""
        return list(dict.fromkeys(literal for formula in formulas for literal in self.pool.literals(formula)))


def _needed(pool: FormulaPool, derivative: Derivative) -> FormulaId:
    """Return the formula that a part must satisfy if the literal is to remain possible."""
    if derivative.if_false == FALSE:
        return FALSE if derivative.if_true == FALSE else derivative.asked
    return pool.not_(derivative.asked) if derivative.if_true == FALSE else TRUE


def _possible(derivatives: Mapping[FormulaId, Derivative], truth: bool) -> dict[FormulaId, FormulaId]:
    """Return for each literal TRUE if it remains possible after a part whose tested formula has this `truth`."""
    return {
        literal: FALSE if (if_true if truth else if_false) == FALSE else TRUE
        for literal, (_, if_true, if_false) in derivatives.items()
    }


def _outcomes(
    derivatives: Mapping[FormulaId, Derivative], truths: Mapping[FormulaId, bool]
) -> dict[FormulaId, FormulaId]:
    """Return the new formula of each literal that changes, as far as `truths` decides."""
    changes = {}
    for literal, (asked, if_true, if_false) in derivatives.items():
        truth = truths.get(asked)
        if truth is not None:
            outcome = if_true if truth else if_false
            if outcome != literal:
                changes[literal] = outcome
    return changes


def negated(pool: FormulaPool, derivative: Derivative) -> Derivative:
    """Return the derivative of the negation of an atom (single assertion).

    Args:
        pool: Table of all formulas.
        derivative: The derivative of the atom itself.
    """
    return Derivative(derivative.asked, pool.not_(derivative.if_true), pool.not_(derivative.if_false))
