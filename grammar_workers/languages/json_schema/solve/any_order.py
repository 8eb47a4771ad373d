"""Derivative graphs of objects whose properties come in any order.

A *node* of the graph has the formulas that are undecided after some properties. A *shape* is the assertion of
`properties`, `required` and similar keywords.

The counter of the pushdown automaton has one bit for each declared name. The bit is set when the name has been read. So
no declared name occurs twice, and an object closes only after all required names. Nodes need not record all names that
have been read. They record only the *tracked* names: names in a negated shape, and names on which a count or a tested
formula depends. Reading any other name can only make the demanded formula harder to satisfy. If an object can be
completed with a name that is not tracked, it can also be completed without this name. So every node can end, whichever
names have been read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.assertions import FormulaId, ObjectShape, PropertyCount, PropertyNames
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, AllOf, AnyOf
from grammar_workers.languages.json_schema.solve.derivatives import Counts, Demand, Ending, Move, Node
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.memo import memoized
from grammar_workers.pushdown.automaton import COUNTER_BITS

# Largest number of names that the nodes of an object track: there may be one node per set of them.
_MAX_TRACKED = 8
# Largest number of alternatives that satisfy the remaining formula when an object closes.
_MAX_TERMS = 64
# Largest number of nodes of one object.
MAX_NODES = 200


class TooManyOrdersError(LimitExceededError):
    """The graph of an object with properties in any order is too large, or takes too many steps to explore."""


class AnyOrderObjects(Objects):
    """Graph of the objects of one demand (formula for a value), with properties in any order.

    A node has the formulas that are undecided after some properties. Unlike in `Objects`, all nodes have position 0,
    and no declared name is skipped.
    """

    def check(self) -> None:
        """Check that the graph of the object does not need too many nodes.

        Raises:
            TooManyOrdersError: The object declares more names than the counter has bits, or the formulas depend on too
                many names.
        """
        if len(self.names) > COUNTER_BITS:
            raise TooManyOrdersError(f"it declares more than {COUNTER_BITS} properties")
        if len(self._tracked(self.formulas)) > _MAX_TRACKED:
            raise TooManyOrdersError(f"its alternatives depend on more than {_MAX_TRACKED} properties")

    def node(self, formulas: tuple[FormulaId, ...], position: int, counts: Counts) -> Node:
        """Return the node (undecided formulas and counts) after some properties.

        Args:
            formulas: The undecided formulas: the demanded one, then the tested ones.
            position: Always 0.
            counts: Counts of the properties read so far. The node keeps only those members of `counts.seen` on which
                the formulas depend.
        """
        seen = counts.seen & self._tracked(formulas)
        return super().node(formulas, position, counts if seen == counts.seen else counts._replace(seen=seen))

    def _last(self, formulas: tuple[FormulaId, ...], position: int) -> int:
        return position

    def skip(self, node: Node) -> Node | None:
        """Return None: no declared name is skipped, because names may occur in any order."""
        return None

    def label_at(self, node: Node) -> Label | None:
        """Return the label (truth values of the tested formulas) of an object that closes at `node`.

        Returns:
            The label. None if the object may not close, or if a truth value is uncertain because undeclared names may
            repeat.
        """
        return self._certain_label(node)

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        """Yield the moves (each reads one property) that are possible at a node: declared names, then undeclared ones.

        Declared names that the node has recorded as read are omitted.

        Args:
            node: Node (undecided formulas and counts) before the property.
            first: Not used: positions do not matter in any order.
            stop: Not used.
        """
        unseen = [part for part in range(len(self.names)) if part not in node.counts.seen]
        yield from filter(None, (self._move(node, part, 0, self._counted(node, part)) for part in unseen))
        yield from self._undeclared_moves(node)

    def endings(self, node: Node) -> tuple[Ending, ...]:
        """Return the conditions for the object to close at a node. At least one of them must hold.

        A node has the undecided formulas and counts after some properties. A condition stands for one alternative that
        satisfies the demanded formula. It holds if all names that the alternative requires have been read. A condition
        omits the names that `node` has recorded as read or not read. TooManyOrdersError is raised if there are too many
        alternatives.

        Returns:
            The conditions. One without names if the object may always close. Empty if it may not close.
        """
        tracked = self._tracked(node.formulas)

        def kept(literal: FormulaId) -> FormulaId:
            if not self._holds_at_end(literal, node):
                return FALSE
            atom, positive = self.pool.split(literal)
            is_open = positive and isinstance(self.pool.assertion(atom), ObjectShape | PropertyNames)
            return literal if is_open else TRUE

        endings: dict[Ending, None] = {}
        demanded = node.formulas[0]
        left = self.pool.rewrite(demanded, {literal: kept(literal) for literal in self.pool.literals(demanded)})
        for term in self._terms(left):
            required = {index for atom in term for index in self._required.get(atom, ())}
            parts = sorted(required - tracked)
            if not parts:
                return (Ending(),)
            if self._unusable.isdisjoint(parts):
                asked = (self.pool.canonical(self.pool.all_of(self._asked(atom, p) for atom in term)) for p in parts)
                endings[Ending(tuple(parts), tuple(map(Demand, asked)))] = None
        return tuple(endings)

    def _terms(self, formula: FormulaId) -> list[tuple[FormulaId, ...]]:
        """Return the disjunctive normal form of a formula without negations, as tuples of atoms."""
        node = self.pool[formula]
        if formula in (TRUE, FALSE):
            return [()] if formula == TRUE else []
        if not isinstance(node, AnyOf | AllOf):
            return [(formula,)]
        options = [self._terms(part) for part in node.parts]
        if (sum if isinstance(node, AnyOf) else math.prod)(map(len, options)) > _MAX_TERMS:
            raise TooManyOrdersError(f"it can be completed in more than {_MAX_TERMS} ways")
        ways = itertools.product(*options) if isinstance(node, AllOf) else ([term] for part in options for term in part)
        return list(dict.fromkeys(tuple(dict.fromkeys(itertools.chain(*way))) for way in ways))

    def advised(self, node: Node) -> frozenset[int]:
        """Return the indices of declared names that a completion may need in addition to the names in `endings`.

        The result has the names on which the formulas of `node` depend. It has all names as long as fewer properties
        have been counted than the formulas distinguish.

        Args:
            node: Node (undecided formulas and counts) before the completion.
        """
        return (
            frozenset(range(len(self.names))) if node.counts.certain < self._horizon else self._tracked(node.formulas)
        )

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _counted(self, node: Node, part: int) -> Counts:
        counts = super()._counted(node, part)
        return counts._replace(seen=counts.seen | {part}) if part in self._tracked(node.formulas) else counts

    def _holds_at_end(self, literal: FormulaId, node: Node) -> bool:
        atom, positive = self.pool.split(literal)
        if isinstance(self.pool.assertion(atom), ObjectShape):
            missing = self._tracked(node.formulas).intersection(self._required[atom]) - node.counts.seen
            return bool(missing) != positive
        return super()._holds_at_end(literal, node)

    @memoized
    def _tracked(self, formulas: tuple[FormulaId, ...]) -> frozenset[int]:
        """Return the declared names of which nodes must track whether they have been read."""
        pool = self.pool
        demanded = dict.fromkeys(map(pool.split, pool.literals(formulas[0])))
        decisive = dict.fromkeys(atom for atom, positive in demanded if not positive)
        decisive.update(dict.fromkeys(pool.atoms(*formulas[1:])))
        tracked: set[int] = set()
        for atom in dict.fromkeys([*(atom for atom, _ in demanded), *decisive]):
            assertion = pool.assertion(atom)
            if isinstance(assertion, PropertyCount):
                if atom in decisive or assertion.minimum > 1 or assertion.maximum is not None:
                    return frozenset(range(len(self.names)))
            elif atom in decisive and isinstance(assertion, ObjectShape | PropertyNames):
                tracked.update(self._required.get(atom, ()))
                tracked.update(i for i in range(len(self.names)) if self._asked(atom, i) != TRUE)
        return frozenset(tracked)
