"""Objects and arrays as graphs of derivatives (Brzozowski, 1964), with parts in place of characters.

A node is what is still undecided about a container after some of its parts: the formulas that are left, and what has
been counted. A move reads one more part (a property or an item): it calls a demand, and the label that comes back picks
the next node. `{"anyOf": [{"properties": {"a": X}, "required": ["b"]}, {"properties": {"a": Y}}]}`, of objects:

    node 0    P or Q                 reading "a" calls the demand (X or Y, questions X, Y)
              label (true, true)     P or Q again: node 0
              label (true, false)    P: the node 1, which may end only after "b"
              label (false, true)    Q: the node 2, which may end at once

Names may be passed over, which mostly changes nothing. Therefore a node stands for all positions between which it
changes nothing, and what may follow depends on the position at which a node is *entered*: the parts from there on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple

from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve.text_language import fixed_label
from grammar_workers.memo import memoized


# These are plain tuples because they are made, hashed and compared for every move between nodes.
class Demand(NamedTuple):
    """A formula that a value must satisfy, and *questions*: formulas about which the caller must know if they hold.

    With `anyOf` of two objects, one value of a shared property may suit both, either or none, and what may follow
    depends on it. The answers are the *label* with which the states of the demand return, so the automaton stays
    deterministic: the determinisation of a visibly pushdown automaton (Alur and Madhusudan, "Visibly pushdown
    languages", 2004).
    """

    formula: FormulaId
    questions: tuple[FormulaId, ...] = ()


class Counts(NamedTuple):
    """What has been counted of an object, up to where more makes no difference.

    `certain` and `total` bound how many properties there are: undeclared ones may be one and the same, and `undeclared`
    tells whether the first of them has been read. Where properties come in any order, `seen` are the declared ones read
    so far that the formulas depend on.
    """

    certain: int = 0
    total: int = 0
    undeclared: bool = False
    seen: frozenset[int] = frozenset()


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """The formulas that are still to be decided (the demanded one first) at positions up to `last`.

    `DerivativeGraph.node` makes each once, so that nodes are equal by identity: they are looked up far more often than
    they are made.
    """

    formulas: tuple[FormulaId, ...]
    last: int
    counts: Counts


class Ending(NamedTuple):
    """A condition to end: each of `parts` (declared properties) has been read, with a value of the demand that has the
    same index in `demands`.
    """

    parts: tuple[int, ...] = ()
    demands: tuple[Demand, ...] = ()


class Derivative(NamedTuple):
    """The derivative of a literal by a part of any value: what it asks of the value, and what is left of the literal if
    that holds and if it does not. A shape with the property "a": X has by "a" the derivative (X, the shape, FALSE).
    """

    asked: FormulaId
    if_true: FormulaId
    if_false: FormulaId


@dataclasses.dataclass(slots=True)
class Transition:
    """The derivative of `formulas` by a part: the demand on its value, and by its label the formulas that are left.

    `derivatives` are those of their literals, `truths` what is known of the value without asking. `after` remembers the
    formulas that are left by label (None: no way to go on).
    """

    demand: Demand
    formulas: tuple[FormulaId, ...]
    derivatives: dict[FormulaId, Derivative]
    truths: dict[FormulaId, bool]
    after: dict[Label, tuple[FormulaId, ...] | None] = dataclasses.field(default_factory=dict)


class Move(NamedTuple):
    """Reading `part` calls `demand`, whose label picks one of `targets` (None: no way to go on), entered at `entry`.

    `DerivativeGraph.follow` finds the target of a label, by `transition` (None: no formula changes) and by the `counts`
    after the part.
    """

    part: int
    demand: Demand
    entry: int
    counts: Counts
    transition: Transition | None
    targets: dict[Label, Node | None]


class DerivativeGraph:
    """The objects or the arrays of one demand: nodes and moves, made as they are asked for.

    `formulas` are resolved for the type, the demanded one first. A part is a number, whose meaning the subclass says.
    """

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self.pool = pool
        self.formulas = formulas
        self.atoms = pool.atoms(*formulas)
        self._conjunction = pool.conjunction(formulas[0])
        fixed = fixed_label(formulas)
        self.is_plain = self._conjunction is not None and fixed is not None and all(map(self._is_shape, self.atoms))
        """True where a counter can do what nodes would: mere shapes joined by `and`, and one label only."""
        self.plain_label: Label = fixed or ()
        """The only label of a plain container."""
        self._transitions: dict[tuple[tuple[FormulaId, ...], Hashable, int, int], Transition | None] = {}

    @functools.cached_property
    def start(self) -> Node:
        """The node before all parts, entered at position 0."""
        return self.node(self.formulas, 0, Counts())

    @memoized
    def node(self, formulas: tuple[FormulaId, ...], position: int, counts: Counts) -> Node:
        """The one node with these formulas and counts that stands for `position`."""
        return Node(formulas, position, counts)

    @property
    def width(self) -> int:
        """Steps that working out one move takes, for budgets."""
        return len(self.atoms)

    def label_at(self, node: Node) -> Label | None:
        """The label if the container ends at `node`; None where the demanded formula does not hold then."""

        def truth(literal: FormulaId) -> bool:
            return self._holds_at_end(literal, node)

        demanded, *asked = node.formulas
        return tuple(self.pool.holds(formula, truth) for formula in asked) if self.pool.holds(demanded, truth) else None

    def endings(self, node: Node) -> tuple[Ending, ...]:
        """The conditions of which one must hold for the container to end at a node with a label."""
        return (Ending(),)

    def skip(self, node: Node) -> Node | None:
        """The node after the part at the last position of `node` has been passed over, entered at the next position.

        Both end the container alike. What may follow one may follow the other, beside the moves of `node` itself.
        """
        return None

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """The moves over parts at the positions of `node` from `first` on, in order.

        Those from `stop` on (None: none) are left out: they are known from when it was entered there.
        """
        raise NotImplementedError

    def _derivative(self, literal: FormulaId, part: int, counts: Counts) -> Derivative:
        """The derivative of a literal over a part after which `counts` has been counted."""
        raise NotImplementedError

    def _is_shape(self, atom: FormulaId) -> bool:
        """True if the plain form of the container can express this atom."""
        raise NotImplementedError

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        """The truth of `literal` if the container ends at `node`."""
        raise NotImplementedError

    def _every(self, asked: Callable[[FormulaId, int], FormulaId], part: int) -> Demand:
        """The demand of all conjuncts of a plain container on one part; `asked` tells what an atom asks of it."""
        return Demand(self.pool.canonical(self._formula_of_every(asked, part)))

    def _formula_of_every(self, asked: Callable[[FormulaId, int], FormulaId], part: int) -> FormulaId:
        """Its formula as the schemas have it: others mean the same, and stand elsewhere."""
        assert self._conjunction is not None
        return self.pool.all_of([asked(atom, part) for atom in self._conjunction])

    def _move(self, node: Node, part: int, entry: int, counts: Counts) -> Move | None:
        """The move over one part that enters the next node at `entry`; None when nothing can satisfy it."""
        formulas = node.formulas
        # Nodes mostly have the same formulas still to be decided.
        identity = (formulas, self._kind(formulas, part), counts.certain, counts.total)
        if identity in self._transitions:
            transition = self._transitions[identity]
        else:
            transition = self._transitions[identity] = self._transition(formulas, part, counts)
        return None if transition is None else Move(part, transition.demand, entry, counts, transition, {})

    def _kind(self, formulas: tuple[FormulaId, ...], part: int) -> Hashable:
        """A key for the parts of which `formulas` ask the same, with the same outcome: they share a transition."""
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
            # What `wanted` implies there is no need to ask.
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
        """The node after a move of `node` with this label of its demand; None where there is no way to go on."""
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
        """The distinct literals of all of them, in order."""
        return list(dict.fromkeys(literal for formula in formulas for literal in self.pool.literals(formula)))


def _needed(pool: FormulaPool, derivative: Derivative) -> FormulaId:
    """The formula that a part must satisfy for a literal to be possible still."""
    if derivative.if_false == FALSE:
        return FALSE if derivative.if_true == FALSE else derivative.asked
    return pool.not_(derivative.asked) if derivative.if_true == FALSE else TRUE


def _possible(derivatives: Mapping[FormulaId, Derivative], truth: bool) -> dict[FormulaId, FormulaId]:
    """Per literal TRUE if it is possible still after a part of which what they ask is `truth`, else FALSE."""
    return {
        literal: FALSE if (if_true if truth else if_false) == FALSE else TRUE
        for literal, (_, if_true, if_false) in derivatives.items()
    }


def _outcomes(
    derivatives: Mapping[FormulaId, Derivative], truths: Mapping[FormulaId, bool]
) -> dict[FormulaId, FormulaId]:
    """Per literal that changes, as far as `truths` tells: the formula that it becomes."""
    changes = {}
    for literal, (asked, if_true, if_false) in derivatives.items():
        truth = truths.get(asked)
        if truth is not None:
            outcome = if_true if truth else if_false
            if outcome != literal:
                changes[literal] = outcome
    return changes


def negated(pool: FormulaPool, derivative: Derivative) -> Derivative:
    """The derivative of a negated atom, from that of the atom."""
    return Derivative(derivative.asked, pool.not_(derivative.if_true), pool.not_(derivative.if_false))
