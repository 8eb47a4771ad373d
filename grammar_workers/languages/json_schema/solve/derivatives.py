"""Objects and arrays as small graphs: which part may come next, what it must satisfy, and what that leads to.

A node is what is still undecided about the container after some of its parts: formulas whose literals change as parts
are read, and what has been counted. A move reads one more part (a property or an item): it calls a rule, and the label
that comes back picks the next node. The idea is that of Brzozowski's derivatives, with parts in place of characters.

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


# These are plain tuples because they are made, hashed and compared for every move between nodes.
class Rule(NamedTuple):
    """What a value must satisfy, and formulas about which the caller asks whether they hold.

    With `anyOf` of two objects, one value of a shared property may suit both, either or none, and what may follow
    depends on it. The answers are the *label* that the rule returns with, which keeps the machine deterministic: it is
    the determinisation of a visibly pushdown automaton (Alur and Madhusudan, "Visibly pushdown languages", 2004).
    """

    formula: FormulaId
    classifiers: tuple[FormulaId, ...] = ()


class Tally(NamedTuple):
    """What has been counted: `certain` and `total` bound how many properties there are, `undeclared` tells whether the
    first undeclared one has been read. Where properties come in any order, `seen` are the declared ones read so far
    that the formulas depend on.
    """

    certain: int = 0
    total: int = 0
    undeclared: bool = False
    seen: frozenset[int] = frozenset()


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """What is still to be decided, at positions up to `last`. `Container.node` makes each once, so that nodes are equal
    by identity: they are looked up far more often than they are made.
    """

    formulas: tuple[FormulaId, ...]
    last: int
    tally: Tally


class Ending(NamedTuple):
    """The container may end once each of `parts` (declared properties) has been read, with a value that satisfies the
    rule at the same place in `rules`.
    """

    parts: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()


class Step(NamedTuple):
    """What a literal asks of a part, and what becomes of it if that holds and if it does not."""

    asked: FormulaId
    if_true: FormulaId
    if_false: FormulaId


@dataclasses.dataclass(slots=True)
class Transition:
    """What reading a part calls, and what becomes of `formulas`: `steps` of the literals that may change, and `truths`
    of what is known without asking. `after` remembers the formulas by the rule's label (None: no way to go on).
    """

    rule: Rule
    formulas: tuple[FormulaId, ...]
    steps: dict[FormulaId, Step]
    truths: dict[FormulaId, bool]
    after: dict[Label, tuple[FormulaId, ...] | None] = dataclasses.field(default_factory=dict)


class Move(NamedTuple):
    """Reading `part` calls `rule`, whose label picks one of `targets` (None: no way to go on), entered at `entry`.

    `Container.follow` finds the target of a label by `transition` (None: no formula changes) and the `tally` then.
    """

    part: int
    rule: Rule
    entry: int
    tally: Tally
    transition: Transition | None
    targets: dict[Label, Node | None]


class Container:
    """One rule's objects or arrays. `formulas` are resolved for the type, the demanded one first."""

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self.pool = pool
        self.formulas = formulas
        self.leaves = pool.leaves(*formulas)
        self._nodes: dict[tuple[tuple[FormulaId, ...], int, Tally], Node] = {}
        self._conjunction = pool.conjunction(formulas[0])
        constant = all(formula in (TRUE, FALSE) for formula in formulas[1:])
        self.is_plain = self._conjunction is not None and constant and all(map(self._is_shape, self.leaves))
        """Whether a register can do what nodes would: mere shapes joined by `and`, and one label only."""
        self._transitions: dict[tuple[tuple[FormulaId, ...], Hashable, int, int], Transition | None] = {}

    @functools.cached_property
    def start(self) -> Node:
        """The node before all parts, entered at position 0."""
        return self.node(self.formulas, 0, Tally())

    def node(self, formulas: tuple[FormulaId, ...], position: int, tally: Tally) -> Node:
        """The one node with these formulas and counts that stands for `position`."""
        known = self._nodes.get((formulas, position, tally))
        if known is None:
            known = self._nodes[formulas, position, tally] = Node(formulas, position, tally)
        return known

    @property
    def plain_label(self) -> Label:
        """The only label of a plain container."""
        return tuple(formula == TRUE for formula in self.formulas[1:])

    @property
    def width(self) -> int:
        """Steps that working out one move takes, for budgets."""
        return len(self.leaves)

    def close(self, node: Node) -> Label | None:
        """The label if the container may end at `node`."""

        def truth(literal: FormulaId) -> bool:
            return self._closes(literal, node)

        demanded, *asked = node.formulas
        return tuple(self.pool.holds(formula, truth) for formula in asked) if self.pool.holds(demanded, truth) else None

    def endings(self, node: Node) -> tuple[Ending, ...]:
        """On which conditions the container may end at a node that may be closed: one of them must hold."""
        return (Ending(),)

    def skip(self, node: Node) -> Node | None:
        """What the part at the last position of `node` may be passed over to, entered at the next position.

        Both end the container alike. What may follow one may follow the other, beside the moves of `node` itself.
        """
        return None

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """The moves over parts at the positions of `node` from `first` on, in order.

        Those from `stop` on (None: none) are left out: they are known from when it was entered there.
        """
        raise NotImplementedError

    def _step(self, literal: FormulaId, part: int, tally: Tally) -> Step:
        """The step of a literal over a part after which `tally` has been counted."""
        raise NotImplementedError

    def _is_shape(self, leaf: FormulaId) -> bool:
        """Whether the plain form of the container can express this leaf."""
        raise NotImplementedError

    def _closes(self, literal: FormulaId, node: Node) -> bool:
        """Whether `literal` holds if the container ends at `node`."""
        raise NotImplementedError

    def _every(self, asked: Callable[[FormulaId, int], FormulaId], part: int) -> Rule:
        """What all conjuncts of a plain container together ask of one part; `asked` tells what a leaf asks of it."""
        assert self._conjunction is not None
        return Rule(self.pool.canonical(self.pool.all_of([asked(leaf, part) for leaf in self._conjunction])))

    def _move(self, node: Node, part: int, entry: int, tally: Tally) -> Move | None:
        """The move over one part that enters the next node at `entry`; None when nothing can satisfy it."""
        formulas = node.formulas
        # Nodes mostly have the same formulas still to be decided.
        identity = (formulas, self._kind(formulas, part), tally.certain, tally.total)
        if identity in self._transitions:
            transition = self._transitions[identity]
        else:
            transition = self._transitions[identity] = self._transition(formulas, part, tally)
        return None if transition is None else Move(part, transition.rule, entry, tally, transition, {})

    def _kind(self, formulas: tuple[FormulaId, ...], part: int) -> Hashable:
        """What `formulas` ask of a part, and what becomes of them: the same for all parts of one kind."""
        return part

    def _transition(self, formulas: tuple[FormulaId, ...], part: int, tally: Tally) -> Transition | None:
        pool = self.pool
        steps = {literal: self._step(literal, part, tally) for literal in self._literals(formulas)}
        needed = {literal: _needed(pool, step) for literal, step in steps.items()}
        wanted = pool.rewrite(formulas[0], needed)
        if wanted == FALSE:
            return None
        truths = {TRUE: True, FALSE: False}
        for literal in pool.conjuncts(formulas[0]):
            if literal in steps and steps[literal].if_false == FALSE:
                truths.setdefault(steps[literal].asked, True)
        classifiers: list[FormulaId] = []
        for asked in dict.fromkeys(step.asked for step in steps.values() if step.if_true != step.if_false):
            if asked in truths:
                continue
            concerned = {literal: step for literal, step in steps.items() if step.asked == asked}
            # What `wanted` implies there is no need to ask.
            if pool.rewrite(formulas[0], needed | _possible(concerned, False)) == FALSE:
                truths[asked] = True
            elif pool.rewrite(formulas[0], needed | _possible(concerned, True)) == FALSE:
                truths[asked] = False
            else:
                classifiers.append(asked)
        for step in steps.values():
            if step.if_true == step.if_false:
                truths.setdefault(step.asked, True)
        return Transition(Rule(pool.canonical(wanted), tuple(classifiers)), formulas, steps, truths)

    def follow(self, node: Node, move: Move, label: Label) -> Node | None:
        """What a move of `node` leads to with the label of its rule; None where there is no way to go on."""
        formulas = node.formulas if move.transition is None else self._after(move.transition, label)
        if formulas is None:
            return None
        if formulas == node.formulas and move.tally == node.tally and move.entry <= node.last:
            return node
        return self.node(formulas, move.entry, move.tally)

    def _after(self, transition: Transition, label: Label) -> tuple[FormulaId, ...] | None:
        known = transition.after
        if label not in known:
            truths = transition.truths | dict(zip(transition.rule.classifiers, label, strict=True))
            changes = _outcomes(transition.steps, truths)
            formulas = tuple([self.pool.rewrite(formula, changes) for formula in transition.formulas])
            known[label] = None if formulas[0] == FALSE else formulas
        return known[label]

    def _literals(self, formulas: tuple[FormulaId, ...]) -> list[FormulaId]:
        """The distinct literals of all of them, in order."""
        return list(dict.fromkeys(literal for formula in formulas for literal in self.pool.literals(formula)))


def _needed(pool: FormulaPool, step: Step) -> FormulaId:
    """What a part must satisfy for a literal to be possible still."""
    if step.if_false == FALSE:
        return FALSE if step.if_true == FALSE else step.asked
    return pool.not_(step.asked) if step.if_true == FALSE else TRUE


def _possible(steps: Mapping[FormulaId, Step], truth: bool) -> dict[FormulaId, FormulaId]:
    """Which literals are possible still after a part of which what they ask is `truth`."""
    return {
        literal: FALSE if (if_true if truth else if_false) == FALSE else TRUE
        for literal, (_, if_true, if_false) in steps.items()
    }


def _outcomes(steps: Mapping[FormulaId, Step], truths: Mapping[FormulaId, bool]) -> dict[FormulaId, FormulaId]:
    """What the literals become that change, as far as `truths` tells."""
    changes = {}
    for literal, (asked, if_true, if_false) in steps.items():
        truth = truths.get(asked)
        if truth is not None:
            outcome = if_true if truth else if_false
            if outcome != literal:
                changes[literal] = outcome
    return changes


def negated(pool: FormulaPool, step: Step) -> Step:
    """The step of a negated leaf, from that of the leaf."""
    return Step(step.asked, pool.not_(step.if_true), pool.not_(step.if_false))
