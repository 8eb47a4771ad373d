"""Objects and arrays as small graphs: which part may come next, what it must satisfy, and what that leads to.

A node is what is still undecided about the container after some of its parts: formulas whose literals change as parts
are read, and a position. A move reads one more part (a property or an item): it calls a rule, and the label that comes
back picks the next node. The idea is that of Brzozowski's derivatives, with parts in place of characters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple

from grammar_workers.json_schema.formula import FALSE, TRUE, FormulaId, FormulaPool
from grammar_workers.json_schema.verdicts import Label


# These are plain tuples because they are made, hashed and compared for every move between nodes.
class Rule(NamedTuple):
    """What a value must satisfy, and formulas about which the caller asks whether they hold.

    With `anyOf` of two objects, one value of a shared property may suit both, either or none, and what may follow
    depends on it. The answers are the *label* that the rule returns with, which keeps the machine deterministic: it is
    the determinisation of a visibly pushdown automaton (Alur and Madhusudan, "Visibly pushdown languages", 2004).
    """

    formula: FormulaId
    classifiers: tuple[FormulaId, ...] = ()


class Place(NamedTuple):
    """`position`: the next declared property or item. `certain` and `total` bound how many properties there are.

    Where properties come in any order, `seen` are the declared ones read so far that the formulas depend on.
    """

    position: int = 0
    certain: int = 0
    total: int = 0
    seen: frozenset[int] = frozenset()


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """What is still to be decided, and where. `Container.node` makes each once, so that nodes are equal by identity:
    they are looked up far more often than they are made.
    """

    formulas: tuple[FormulaId, ...]
    place: Place


class Ending(NamedTuple):
    """The container may end once each of `parts` (declared properties) has been read, with a value that satisfies the
    rule at the same place in `rules`.
    """

    parts: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()


class Edge(NamedTuple):
    """A move as far as it leads anywhere: reading `part` calls `rule`, whose label picks one of `targets`."""

    part: int
    rule: Rule
    targets: dict[Label, Node]


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
    steps: dict[FormulaId, Step] = dataclasses.field(default_factory=dict)
    truths: dict[FormulaId, bool] = dataclasses.field(default_factory=dict)
    after: dict[Label, tuple[FormulaId, ...] | None] = dataclasses.field(default_factory=dict)


class Move(NamedTuple):
    """`part` tells which property or item is read, `after` the place then. `Container.follow` maps labels to nodes."""

    part: int
    transition: Transition
    after: Place


class Container:
    """One rule's objects or arrays. `formulas` are resolved for the type, the demanded one first."""

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self.pool = pool
        self.leaves = pool.leaves(*formulas)
        self._nodes: dict[tuple[tuple[FormulaId, ...], Place], Node] = {}
        self.start = self.node(formulas, Place())
        self._conjunction = pool.conjunction(formulas[0])
        constant = all(formula in (TRUE, FALSE) for formula in formulas[1:])
        self.is_plain = self._conjunction is not None and constant and all(map(self._is_shape, self.leaves))
        """Whether a register can do what nodes would: mere shapes joined by `and`, and one label only."""
        self._moves: dict[Node, list[Move]] = {}
        self._transitions: dict[tuple[tuple[FormulaId, ...], Hashable, int, int], Transition | None] = {}

    def node(self, formulas: tuple[FormulaId, ...], place: Place) -> Node:
        """The one node with these formulas at this place."""
        known = self._nodes.get((formulas, place))
        if known is None:
            known = self._nodes[formulas, place] = Node(formulas, place)
        return known

    @property
    def plain_label(self) -> Label:
        """The only label of a plain container."""
        return tuple(formula == TRUE for formula in self.start.formulas[1:])

    @property
    def width(self) -> int:
        """Steps that working out the moves of one node takes, for budgets."""
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
        """The node whose moves are moves of `node`, too, beside those of its own: a part is passed over in silence.

        Both end the container alike. Following it from node to node costs as much as there are parts; listing with
        every node all parts that may come after it would cost the square of that.
        """
        return None

    def moves(self, node: Node) -> list[Move]:
        """Every part that may come after `node` and not after `skip(node)`; worked out once."""
        known = self._moves.get(node)
        if known is None:
            known = self._moves[node] = list(self._find_moves(node))
        return known

    def _find_moves(self, node: Node) -> Iterator[Move]:
        raise NotImplementedError

    def _step(self, literal: FormulaId, part: int, after: Place) -> Step:
        """The step of a literal over a part that leads to the place `after`."""
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

    def _move(self, formulas: tuple[FormulaId, ...], part: int, after: Place) -> Move | None:
        """The move over one part to the place `after`; None when nothing can satisfy it."""
        # Nodes at different positions mostly have the same formulas still to be decided.
        identity = (formulas, self._kind(formulas, part), after.certain, after.total)
        if identity in self._transitions:
            transition = self._transitions[identity]
        else:
            transition = self._transitions[identity] = self._transition(formulas, part, after)
        return None if transition is None else Move(part, transition, after)

    def _kind(self, formulas: tuple[FormulaId, ...], part: int) -> Hashable:
        """What `formulas` ask of a part, and what becomes of them: the same for all parts of one kind."""
        return part

    def _transition(self, formulas: tuple[FormulaId, ...], part: int, after: Place) -> Transition | None:
        pool = self.pool
        steps = {literal: self._step(literal, part, after) for literal in self._literals(formulas)}
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

    def follow(self, move: Move, label: Label) -> Node | None:
        """The node after a part whose rule has returned with `label`; None where there is no way to go on."""
        known = move.transition.after
        if label not in known:
            known[label] = self._after(move.transition, label)
        formulas = known[label]
        if formulas is None:
            return None
        return self.node(formulas, move.after)

    def _after(self, transition: Transition, label: Label) -> tuple[FormulaId, ...] | None:
        if not transition.steps:
            return transition.formulas
        truths = transition.truths | dict(zip(transition.rule.classifiers, label, strict=True))
        changes = _outcomes(transition.steps, truths)
        formulas = tuple([self.pool.rewrite(formula, changes) for formula in transition.formulas])
        return None if formulas[0] == FALSE else formulas

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
