"""Object shapes that exclude each other, as the alternatives of a tagged union do.

`oneOf` says of each alternative that the others fail. Where a property that must be there cannot have a value that
suits two alternatives, that goes without saying; leaving it out spares the graph of the object all nodes that would
tell how an alternative fails.
"""

from __future__ import annotations

from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.json_schema.assertions import FiniteTexts, FormulaId, JsonType, ObjectShape
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, AllOf, AnyOf, Atom, FormulaPool
from grammar_workers.memo import memoized


class Disjointness:
    """Exclusions between the formulas of one pool. All answers are on the safe side: no means not recognised."""

    def __init__(self, pool: FormulaPool) -> None:
        self._pool = pool

    def simplify(self, formula: FormulaId, given: tuple[FormulaId, ...] = ()) -> FormulaId:
        """A formula resolved for objects, less what follows from the shapes beside it (and `given`)."""
        # What excludes nothing of a formula makes no difference to it: parts that are shared are looked at once.
        return self._simplify(formula, self._concerning(formula, given))

    @memoized
    def _simplify(self, formula: FormulaId, given: tuple[FormulaId, ...]) -> FormulaId:
        pool = self._pool
        node = pool[formula]
        if isinstance(node, AnyOf):
            return pool.any_of([self.simplify(part, given) for part in node.parts])
        if not isinstance(node, AllOf):
            if formula in (TRUE, FALSE) or not given:
                return formula
            return FALSE if pool.split(formula)[1] else TRUE
        shapes = [part for part in node.parts if isinstance(pool[part], Atom)]
        parts = []
        for part in node.parts:
            beside = (*given, *(shape for shape in shapes if shape != part))
            parts.append(self.simplify(part, beside))
        return pool.all_of(parts)

    def _concerning(self, formula: FormulaId, given: tuple[FormulaId, ...]) -> tuple[FormulaId, ...]:
        """Those of `given` that exclude some atom of `formula`."""
        if not given:
            return ()
        atoms = self._pool.atoms(formula)
        self._pool.spend(1 + len(atoms) * len(given))
        return tuple([other for other in given if any(self._exclude_each_other(atom, other) for atom in atoms)])

    def _exclude_each_other(self, first: FormulaId, second: FormulaId) -> bool:
        return self._are_exclusive(min(first, second), max(first, second))

    @memoized
    def _are_exclusive(self, first: FormulaId, second: FormulaId) -> bool:
        one, other = self._pool.assertion(first), self._pool.assertion(second)
        if first == second or not isinstance(one, ObjectShape) or not isinstance(other, ObjectShape):
            return False
        return any(
            self._is_impossible(self._pool.all_of([_asked(one, name), _asked(other, name)]))
            for name in dict.fromkeys(one.required + other.required)
        )

    @memoized
    def _is_impossible(self, formula: FormulaId) -> bool:
        """True if no value satisfies the formula: every type is excluded, or is left with no listed text."""
        try:
            return all(self._is_empty(self._pool.resolve(formula, type_)) for type_ in JsonType)
        except InvalidSpecificationError:
            # References in a circle are reported if the pushdown automaton needs them.
            return False

    def _is_empty(self, resolved: FormulaId) -> bool:
        node = self._pool[resolved]
        if isinstance(node, AnyOf):
            return all(map(self._is_empty, node.parts))
        atoms = [part for part in self._pool.conjuncts(resolved) if isinstance(self._pool[part], Atom)]
        listed = [set(texts.texts) for atom in atoms if isinstance(texts := self._pool.assertion(atom), FiniteTexts)]
        return resolved == FALSE or (bool(listed) and not set.intersection(*listed))


def _asked(shape: ObjectShape, name: str) -> FormulaId:
    """The formula that a shape surely asks of a property; TRUE where a pattern could match its name."""
    declared = dict(shape.properties).get(name)
    if declared is not None:
        return declared
    return TRUE if shape.patterns else shape.additional
