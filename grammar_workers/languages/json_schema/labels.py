"""Labels: the truth values of formulas that are tested on a value. `Labelling` numbers the labels of texts.

A *demand* is a formula that a value must satisfy, with further formulas to test on the value. The *label* of a value is
the tuple of the truth values of the tested formulas. An *atom* is a formula that states one assertion of a keyword.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

from grammar_workers.languages.json_schema.assertions import FiniteTexts, FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, FormulaPool

# Truth value of each formula that a demand tests, in order; () if it tests none.
Label: TypeAlias = tuple[bool, ...]


class Labelling:
    """Numbering of the labels of texts (strings or numbers) for one demand, from 1 in the order of discovery.

    A demand is a formula that each text must satisfy, with further formulas to test. A label is the tuple of the truth
    values of the tested formulas for a text. An atom is a formula that states one assertion. For example, if the only
    tested formula is a pattern, matching texts have the label (True,), and other texts (False,).

    Several rules may judge a text and disagree, such as two dialects of regular expressions. A formula is *certain* for
    a text if all rules agree that it is true. If neither a tested formula nor its negation is certain, the text has no
    label and no number.

    Args:
        pool: Table of all formulas.
        formulas: The demanded formula, then the tested formulas. All are already reduced to the JSON type of the texts
            (`FormulaPool.resolve`).

    Attributes:
        certain: The formulas to judge for a text: the demanded formula, then each tested formula followed by its
            negation.
        finite: Each atom that lists texts -> dict with these texts as keys (values None), in the listed order.
        others: All other atoms of the formulas.
    """

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> None:
        self._pool = pool
        demanded, *asked = formulas
        self.certain = [demanded, *(one for formula in asked for one in (formula, pool.not_(formula)))]
        assertions = {atom: pool.assertion(atom) for atom in pool.atoms(*formulas)}
        self.finite = {atom: dict.fromkeys(a.texts) for atom, a in assertions.items() if isinstance(a, FiniteTexts)}
        self.others = [atom for atom in assertions if atom not in self.finite]
        self._labels: dict[Label, int] = {}

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels (truth values of the tested formulas) found so far. The label with number n is at index n - 1."""
        return tuple(self._labels)

    @property
    def listed(self) -> list[str]:
        """Texts that atoms (assertions) such as `enum` list, in order, each once."""
        return list(dict.fromkeys(text for texts in self.finite.values() for text in texts))

    @property
    def has_unlisted(self) -> bool:
        """True if a text that no atom (assertion such as `enum`) lists may satisfy the demanded formula."""
        return self._pool.substitute(self.certain[0], dict.fromkeys(self.finite, FALSE)) != FALSE

    def number(self, certain: Sequence[bool]) -> int:
        """Return the number of a text's label. A new label gets the next number.

        A label is the tuple of the truth values of the tested formulas. Return 0 if the demanded formula is not
        certain, or if neither a tested formula nor its negation is certain.

        Args:
            certain: For each formula in the attribute `certain`, True if the formula is certainly true of the text.
        """
        demanded, holding, failing = certain[0], tuple(certain[1::2]), certain[2::2]
        if not demanded or not all(map(operator.or_, holding, failing)):
            return 0
        return self._labels.setdefault(holding, len(self._labels) + 1)

    def number_of(self, *rules: Callable[[FormulaId], bool]) -> int:
        """Return the number of a text's label, or 0 if no label is certain.

        A label is the tuple of the truth values of the tested formulas.

        Args:
            rules: Functions that judge the text. Each takes a literal (an atom, which is a single assertion, or its
                negation) and returns its truth value. A formula is certain if it is true by all functions.
        """
        return self.number([all(self._pool.holds(one, truth) for truth in rules) for one in self.certain])
