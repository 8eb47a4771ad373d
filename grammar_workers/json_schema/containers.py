"""Objects and arrays as small graphs: which part may come next, what it must satisfy, and what that leads to.

A node is what is still undecided about the container after some of its parts: formulas whose literals change as parts
are read, and a position. A move reads one more part (a property or an item): it calls a rule, and the label that comes
back picks the next node. The idea is that of Brzozowski's derivatives, with parts in place of characters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from grammar_workers.json_schema.formula import FALSE, TRUE, FormulaId, FormulaPool
from grammar_workers.json_schema.scalars import Label


# These are plain tuples because they are made, hashed and compared for every move between nodes.
class Rule(NamedTuple):
    """What a value must satisfy, and formulas about which the caller asks whether they hold.

    With `anyOf` of two objects, one value of a shared property may suit both, either or none, and what may follow
    depends on it. The answers are the *label* that the rule returns with, which keeps the machine deterministic: it is
    the determinisation of a visibly pushdown automaton (Alur and Madhusudan, "Visibly pushdown languages", 2004).
    """

    formula: FormulaId
    classifiers: tuple[FormulaId, ...] = ()


class Node(NamedTuple):
    """`position`: the next declared property or item. `certain` and `total` bound how many properties there are.

    Where properties come in any order, `seen` are the declared ones read so far that the formulas depend on.
    """

    formulas: tuple[FormulaId, ...]
    position: int = 0
    certain: int = 0
    total: int = 0
    seen: frozenset[int] = frozenset()


class Ending(NamedTuple):
    """The container may end once each of `parts` (declared properties) has been read, with a value that satisfies the
    rule at the same place in `rules`.
    """

    parts: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()


class Move(NamedTuple):
    """`part` tells which property or item is read; `follow` maps the rule's label to a node or None."""

    part: int
    rule: Rule
    follow: Callable[[Label], Node | None]


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


class Transition(NamedTuple):
    """What reading a part calls, and what becomes of the formulas by the rule's label (None: no way to go on)."""

    rule: Rule
    after: Callable[[Label], tuple[FormulaId, ...] | None]


class Container:
    """One rule's objects or arrays. `formulas` are resolved for the type, the demanded one first."""

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self.pool = pool
        self.leaves = tuple(dict.fromkeys(leaf for formula in formulas for leaf in pool.leaves(formula)))
        self.start = Node(formulas)
        self._conjunction = pool.conjunction(formulas[0])
        constant = all(formula in (TRUE, FALSE) for formula in formulas[1:])
        self.is_plain = self._conjunction is not None and constant and all(map(self._is_shape, self.leaves))
        """Whether a register can do what nodes would: mere shapes joined by `and`, and one label only."""
        self._moves: dict[Node, list[Move]] = {}
        self._transitions: dict[tuple[tuple[FormulaId, ...], int, int, int], Transition | None] = {}

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
        ended = tuple(
            self.pool.rewrite(formula, lambda literal: TRUE if self._closes(literal, node) else FALSE)
            for formula in node.formulas
        )
        return tuple(formula == TRUE for formula in ended[1:]) if ended[0] == TRUE else None

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

    def _step(self, literal: FormulaId, part: int, following: Node) -> Step:
        """The step of a literal over a part, after which come the position and the counts of `following`."""
        raise NotImplementedError

    def _is_shape(self, leaf: FormulaId) -> bool:
        """Whether the plain form of the container can express this leaf."""
        raise NotImplementedError

    def _closes(self, literal: FormulaId, node: Node) -> bool:
        """Whether `literal` holds if the container ends at `node`."""
        raise NotImplementedError

    def _every(self, parts: Callable[[FormulaId], FormulaId]) -> Rule:
        """What all conjuncts of a plain container together ask of one part."""
        assert self._conjunction is not None
        return Rule(self.pool.all_of(map(parts, self._conjunction)))

    def _move(self, formulas: tuple[FormulaId, ...], part: int, following: Node) -> Move | None:
        """The move over one part; None when nothing can satisfy it. `following` has the next position and counts."""
        # Nodes at different positions mostly have the same formulas still to be decided.
        identity = (formulas, part, following.certain, following.total)
        if identity in self._transitions:
            transition = self._transitions[identity]
        else:
            transition = self._transitions[identity] = self._transition(formulas, part, following)
        if transition is None:
            return None
        return Move(part, transition.rule, functools.partial(_follow, transition, following))

    def _transition(self, formulas: tuple[FormulaId, ...], part: int, following: Node) -> Transition | None:
        pool = self.pool
        step = {literal: self._step(literal, part, following) for literal in self._literals(formulas)}

        def needed(literal: FormulaId) -> FormulaId:
            asked, if_true, if_false = step[literal]
            if if_false == FALSE:
                return FALSE if if_true == FALSE else asked
            return pool.not_(asked) if if_true == FALSE else TRUE

        wanted = pool.rewrite(formulas[0], needed)
        if wanted == FALSE:
            return None

        def after(formula: FormulaId, truths: dict[FormulaId, bool]) -> FormulaId:
            def outcome(literal: FormulaId) -> FormulaId:
                asked, if_true, if_false = step[literal]
                if asked not in truths:
                    return literal
                return if_true if truths[asked] else if_false

            return pool.rewrite(formula, outcome)

        truths = {TRUE: True, FALSE: False}
        for literal in pool.conjuncts(formulas[0]):
            if literal in step and step[literal].if_false == FALSE:
                truths.setdefault(step[literal].asked, True)
        classifiers: list[FormulaId] = []
        for asked in dict.fromkeys(one.asked for one in step.values() if one.if_true != one.if_false):
            if asked in truths:
                continue
            # What the demanded formula cannot do without, `wanted` implies: no need to ask.
            if after(formulas[0], {asked: False}) == FALSE:
                truths[asked] = True
            elif after(formulas[0], {asked: True}) == FALSE:
                truths[asked] = False
            else:
                classifiers.append(asked)
        for one in step.values():
            if one.if_true == one.if_false:
                truths.setdefault(one.asked, True)

        @functools.cache
        def by_label(label: Label) -> tuple[FormulaId, ...] | None:
            known = truths | dict(zip(classifiers, label, strict=True))
            demanded = after(formulas[0], known)
            if demanded == FALSE:
                return None
            return (demanded, *(after(formula, known) for formula in formulas[1:]))

        return Transition(Rule(wanted, tuple(classifiers)), by_label)

    def _literals(self, formulas: tuple[FormulaId, ...]) -> list[FormulaId]:
        """The distinct literals of all of them, in order."""
        return list(dict.fromkeys(literal for formula in formulas for literal in self.pool.literals(formula)))


def _follow(transition: Transition, following: Node, label: Label) -> Node | None:
    """`following` with the formulas after a part whose rule returned `label`."""
    formulas = transition.after(label)
    if formulas is None:
        return None
    return Node(formulas, following.position, following.certain, following.total, following.seen)


def negated(pool: FormulaPool, step: Step) -> Step:
    """The step of a negated leaf, from that of the leaf."""
    return Step(step.asked, pool.not_(step.if_true), pool.not_(step.if_false))
