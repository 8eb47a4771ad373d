"""Objects whose properties come in any order: which names have been seen is part of the configuration, not of nodes.

The pushdown automaton keeps a bit per declared name in the counter, so that no name comes twice and an object closes
only when what is required has been read. Nodes follow what values decide about the formulas, and only those names on
which a formula can depend in more than one way (`_tracked`): names in a negated shape, and names that a count or a
classifier depends on. Of all other names it holds that reading one can only make the demanded formula harder to
satisfy. So whatever can be completed by reading such a name once more can be completed without it, and no node is a
dead end for any set of seen names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.assertions import FormulaId, ObjectShape, PropertyCount, PropertyNames
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, AllOf, AnyOf
from grammar_workers.languages.json_schema.solve.derivatives import Counts, Demand, Ending, Move, Node
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.memo import memoized
from grammar_workers.pushdown.automaton import COUNTER_BITS

_MAX_TRACKED = 8
"""Names per object that nodes track: there may be a node per set of them."""
_MAX_TERMS = 64
"""Ways to satisfy what is left of a formula when an object closes."""
MAX_NODES = 200
"""Nodes of one object."""


class TooManyOrdersError(LimitExceededError):
    """Telling apart which properties have been seen takes too many nodes."""


class AnyOrderObjects(Objects):
    """The objects of one demand, in any order: every node stands for position 0 alone, and no name is passed over."""

    def check(self) -> None:
        """Raise TooManyOrdersError for an object that would take too many nodes."""
        if len(self.names) > COUNTER_BITS:
            raise TooManyOrdersError(f"it declares more than {COUNTER_BITS} properties")
        if len(self._tracked(self.formulas)) > _MAX_TRACKED:
            raise TooManyOrdersError(f"its alternatives depend on more than {_MAX_TRACKED} properties")

    def node(self, formulas: tuple[FormulaId, ...], position: int, counts: Counts) -> Node:
        """It knows only those names that its formulas depend on."""
        seen = counts.seen & self._tracked(formulas)
        return super().node(formulas, position, counts if seen == counts.seen else counts._replace(seen=seen))

    def _last(self, formulas: tuple[FormulaId, ...], position: int) -> int:
        return position

    def skip(self, node: Node) -> Node | None:
        """None: any name may come at any time."""
        return None

    def label_at(self, node: Node) -> Label | None:
        return self._certain_label(node)

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        unseen = [part for part in range(len(self.names)) if part not in node.counts.seen]
        yield from filter(None, (self._move(node, part, 0, self._counted(node, part)) for part in unseen))
        yield from self._undeclared_moves(node)

    def endings(self, node: Node) -> tuple[Ending, ...]:
        """A condition per way to satisfy the formula: what it requires and nodes do not track must have been read."""
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
        """The disjunctive normal form of a formula without negations: tuples of atoms."""
        node = self.pool[formula]
        if formula in (TRUE, FALSE):
            return [()] if formula == TRUE else []
        if isinstance(node, AnyOf):
            terms = [term for part in node.parts for term in self._terms(part)]
        elif isinstance(node, AllOf):
            terms = [()]
            for part in node.parts:
                options = self._terms(part)
                if len(terms) * len(options) > _MAX_TERMS:
                    raise TooManyOrdersError(f"it can be completed in more than {_MAX_TERMS} ways")
                terms = [tuple(itertools.chain(*pair)) for pair in itertools.product(terms, options)]
        else:
            return [(formula,)]
        if len(terms) > _MAX_TERMS:
            raise TooManyOrdersError(f"it can be completed in more than {_MAX_TERMS} ways")
        return list(dict.fromkeys(tuple(dict.fromkeys(term)) for term in terms))

    def advised(self, node: Node) -> frozenset[int]:
        """The declared names that may have to be read although nothing requires them."""
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
        """The declared names of which nodes must know whether they have been seen."""
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
