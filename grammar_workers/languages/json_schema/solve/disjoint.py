"""Detection of object shapes that exclude each other, such as the alternatives of a tagged union.

An object shape is the assertion of `properties`, `required` and similar keywords. `oneOf` requires of each alternative
that all others fail. Two alternatives exclude each other if they require a common property, and no value of this
property satisfies both. Then the conditions that the others fail can be dropped, and the object's graph needs fewer
nodes.
"""

from __future__ import annotations

from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.json_schema.assertions import FiniteTexts, FormulaId, JsonType, ObjectShape
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, AllOf, AnyOf, Atom, FormulaPool
from grammar_workers.memo import memoized


class Disjointness:
    """Simplifier of formulas that detects which atoms (single assertions) exclude each other. It may miss exclusions.

    Args:
        pool: Table of all formulas.
    """

    def __init__(self, pool: FormulaPool) -> None:
        self._pool = pool

    def simplify(self, formula: FormulaId, given: tuple[FormulaId, ...] = ()) -> FormulaId:
        """Return an equivalent formula without operands that other operands already decide.

        An operand is removed if object shapes that are joined to it by "and" make it always true or always false. An
        object shape is the assertion of `properties`, `required` and similar keywords.

        Args:
            formula: Number of a formula that is resolved (reduced to values of one type) for objects.
            given: Numbers of further formulas of object shapes that are known to be true.
        """
        # Atoms that exclude nothing in a formula are dropped, so that a shared part is simplified only once.
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
        """Return those of `given` that exclude some atom of `formula`."""
        if not given:
            return ()
        atoms = self._pool.atoms(formula)
        self._pool.spend(1 + len(atoms) * len(given))
        return tuple([other for other in given if any(self._are_exclusive(*sorted((atom, other))) for atom in atoms)])

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
        """Return whether the formula excludes every type or leaves it without a listed text."""
        try:
            return all(self._is_empty(self._pool.resolve(formula, type_)) for type_ in JsonType)
        except InvalidSpecificationError:
            # A cycle of references is reported later, if the pushdown automaton needs the references.
            return False

    def _is_empty(self, resolved: FormulaId) -> bool:
        node = self._pool[resolved]
        if isinstance(node, AnyOf):
            return all(map(self._is_empty, node.parts))
        atoms = [part for part in self._pool.conjuncts(resolved) if isinstance(self._pool[part], Atom)]
        listed = [set(texts.texts) for atom in atoms if isinstance(texts := self._pool.assertion(atom), FiniteTexts)]
        return resolved == FALSE or (bool(listed) and not set.intersection(*listed))


def _asked(shape: ObjectShape, name: str) -> FormulaId:
    """Return the formula that a shape certainly requires of a property; TRUE if a pattern could match its name."""
    declared = dict(shape.properties).get(name)
    if declared is not None:
        return declared
    return TRUE if shape.patterns else shape.additional
