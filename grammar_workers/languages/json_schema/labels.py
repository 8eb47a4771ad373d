"""Labels: the answers to the questions of a demand about one value, and the labels of texts in particular."""

from __future__ import annotations

from typing import TypeAlias

from grammar_workers.languages.json_schema.assertions import FiniteTexts, FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.memo import memoized

Label: TypeAlias = tuple[bool, ...]
"""The truth of each question of a demand, in their order; () where nothing is asked."""


class Labelling:
    """The labels of texts, numbered as they are found, by the atoms of the formulas that a text satisfies.

    `formulas` are the demanded one, then the questions. With one atom, a pattern, demanded or not by `TRUE` and asked
    about, texts that match have the label (True,), which is number 1, and others (False,), number 2.

    `finite` are the atoms that list texts, `others` all others.
    """

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self._pool = pool
        self._formulas = formulas
        assertions = {atom: pool.assertion(atom) for atom in pool.atoms(*formulas)}
        self.finite = {atom: dict.fromkeys(a.texts) for atom, a in assertions.items() if isinstance(a, FiniteTexts)}
        self.others = [atom for atom in assertions if atom not in self.finite]
        self._labels: dict[Label, int] = {}

    @property
    def labels(self) -> tuple[Label, ...]:
        """Those given so far."""
        return tuple(self._labels)

    @property
    def listed(self) -> list[str]:
        """The distinct texts that atoms list."""
        return list(dict.fromkeys(text for texts in self.finite.values() for text in texts))

    def listing(self, text: str) -> frozenset[FormulaId]:
        """The atoms that list a text."""
        return frozenset(atom for atom, texts in self.finite.items() if text in texts)

    @property
    def has_unlisted(self) -> bool:
        """True if a text that no atom lists may satisfy the demanded formula."""
        demanded = self._formulas[0]
        literals = map(self._pool.split, self._pool.literals(demanded))
        unlisted = {
            atom if positive else self._pool.not_(atom): FALSE if positive else TRUE
            for atom, positive in literals
            if atom in self.finite
        }
        return self._pool.rewrite(demanded, unlisted) != FALSE

    @memoized
    def __call__(self, truths: tuple[bool, ...], members: frozenset[FormulaId]) -> int:
        """The index + 1 of the label, 0 where the demanded formula fails. `truths` are those of `others`, `members` the
        atoms that list the text.
        """
        holding = {*members, *(atom for atom, truth in zip(self.others, truths, strict=True) if truth)}

        def truth(literal: FormulaId) -> bool:
            atom, positive = self._pool.split(literal)
            return (atom in holding) == positive

        demanded, *asked = self._formulas
        if not self._pool.holds(demanded, truth):
            return 0
        label = tuple(self._pool.holds(formula, truth) for formula in asked)
        return self._labels.setdefault(label, len(self._labels)) + 1
