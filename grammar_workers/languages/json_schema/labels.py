"""Labels: what the classifiers of a rule say of a value, and of a text in particular."""

from __future__ import annotations

from typing import TypeAlias

from grammar_workers.languages.json_schema.assertions import FiniteTexts, FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool

Label: TypeAlias = tuple[bool, ...]
"""Whether each classifier of a rule holds."""


class Verdicts:
    """Which label a text has, given which leaves of the formulas (the demanded one first) it satisfies.

    `finite` are the leaves that list texts, `others` all others.
    """

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self._pool = pool
        self._formulas = formulas
        assertions = {leaf: pool.assertion(leaf) for leaf in pool.leaves(*formulas)}
        self.finite = {leaf: dict.fromkeys(a.texts) for leaf, a in assertions.items() if isinstance(a, FiniteTexts)}
        self.others = [leaf for leaf in assertions if leaf not in self.finite]
        self._labels: dict[Label, int] = {}
        self._known: dict[tuple[tuple[bool, ...], frozenset[FormulaId]], int] = {}

    @property
    def labels(self) -> tuple[Label, ...]:
        """Those given so far."""
        return tuple(self._labels)

    @property
    def listed(self) -> list[str]:
        """The distinct texts that leaves list."""
        return list(dict.fromkeys(text for texts in self.finite.values() for text in texts))

    def listing(self, text: str) -> frozenset[FormulaId]:
        """The leaves that list a text."""
        return frozenset(leaf for leaf, texts in self.finite.items() if text in texts)

    @property
    def has_unlisted(self) -> bool:
        """Whether a text may satisfy the demanded formula that no leaf lists."""
        demanded = self._formulas[0]
        literals = map(self._pool.split, self._pool.literals(demanded))
        unlisted = {
            leaf if positive else self._pool.not_(leaf): FALSE if positive else TRUE
            for leaf, positive in literals
            if leaf in self.finite
        }
        return self._pool.rewrite(demanded, unlisted) != FALSE

    def __call__(self, truths: tuple[bool, ...], members: frozenset[FormulaId]) -> int:
        """The index + 1 of the label, 0 where the demanded formula fails. `truths` are those of `others`, `members` the
        leaves that list the text.
        """
        known = self._known.get((truths, members))
        if known is None:
            known = self._known[truths, members] = self._find(truths, members)
        return known

    def _find(self, truths: tuple[bool, ...], members: frozenset[FormulaId]) -> int:
        holding = {*members, *(leaf for leaf, truth in zip(self.others, truths, strict=True) if truth)}

        def truth(literal: FormulaId) -> bool:
            leaf, positive = self._pool.split(literal)
            return (leaf in holding) == positive

        demanded, *asked = self._formulas
        if not self._pool.holds(demanded, truth):
            return 0
        label = tuple(self._pool.holds(formula, truth) for formula in asked)
        return self._labels.setdefault(label, len(self._labels)) + 1
