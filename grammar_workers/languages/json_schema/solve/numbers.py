"""Sets of the numbers that satisfy formulas about bounds, multiples and listed values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from decimal import Decimal

from grammar_workers.budget import remembered
from grammar_workers.dfa.dfa import Dfa, combine, intersect, literal_set
from grammar_workers.languages.json_schema.assertions import (
    Assertion,
    FiniteTexts,
    FormulaId,
    IsInteger,
    MultipleOf,
    NumberBound,
)
from grammar_workers.languages.json_schema.labels import Labelling
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve import number_dfa
from grammar_workers.languages.json_schema.solve.number_dfa import MAX_DIGITS
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.text_language import EMPTY, TextLanguage, fixed_label
from grammar_workers.options import Limits


class Numbers:
    """Compiler that converts a formula about numbers to the set of the matching numbers, as texts.

    All numbers have at most `MAX_DIGITS` digits before the point.

    Args:
        pool: Table of all formulas.
        limits: Limits of the compilation.
        spelling: The characters that the vocabulary can encode.

    Attributes:
        has_long_numbers: True if numbers are excluded because they need more than `MAX_DIGITS` digits before the point.
    """

    def __init__(self, pool: FormulaPool, limits: Limits, spelling: Spelling) -> None:
        self._pool = pool
        self._limits = limits
        self._spelling = spelling
        self.has_long_numbers = False

    def language(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """Return the numbers that satisfy a demanded formula, with labels (truth values of the tested formulas).

        LimitExceededError is raised if an automaton becomes too large.

        Args:
            formulas: The demanded formula, then the tested ones, all resolved (reduced to values of one type) for
                numbers.

        Returns:
            The language of the numbers' texts; EMPTY if there are none.
        """
        if formulas[0] == FALSE:
            return EMPTY
        return self._short_enough(self._spelling.spelled(self._all_numbers(formulas)))

    def _all_numbers(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        fixed = fixed_label(formulas)
        if fixed is not None and formulas[0] == TRUE:
            return TextLanguage((fixed,), automaton=number_dfa.any_number())
        atoms = self._pool.conjunction(formulas[0])
        if fixed is not None and atoms is not None:
            assertions = [self._pool.assertion(atom) for atom in atoms]
            if not any(isinstance(assertion, FiniteTexts) for assertion in assertions):
                return TextLanguage((fixed,), automaton=_numbers(tuple(assertions), self._limits))
        return self._labelled_numbers(formulas)

    def _labelled_numbers(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """Return the numbers for any formulas."""
        labelled = _LabelledNumbers(self._pool, formulas, self._limits)
        texts = labelled.listed()
        automaton = labelled.unlisted()
        if automaton is None:
            return TextLanguage(labelled.labelling.labels, texts=texts)
        if texts:
            automaton = combine([automaton, literal_set(texts)], lambda found: found[0] or found[1], self._limits)
        return TextLanguage(labelled.labelling.labels, automaton=automaton)

    def _short_enough(self, language: TextLanguage) -> TextLanguage:
        """Return `language` without the labels that no number with at most MAX_DIGITS digits has."""
        automaton = language.automaton
        if language.texts is not None:
            texts = {t: n for t, n in language.texts.items() if number_dfa.has_few_digits(t)}
            self.has_long_numbers |= len(texts) < len(language.texts)
            return dataclasses.replace(language, texts=texts) if texts else EMPTY
        if automaton is None:
            return EMPTY
        fewest = [
            int(number_dfa.digits_needed(automaton, n + 1)[number_dfa.WHOLE, 0]) for n in range(len(language.labels))
        ]
        if max(fewest) <= MAX_DIGITS:
            return language
        self.has_long_numbers = True
        kept = [label for label, digits in zip(language.labels, fewest, strict=True) if digits <= MAX_DIGITS]
        return language.labelled(tuple(kept)) if kept else EMPTY


class _LabelledNumbers:
    """Numbers of a demanded formula, with the numbers of their labels.

    JSON Schema compares numbers by value, and some texts of a value are not generated: 1.0 where 1 is listed, or where
    an integer is required. Such a text is excluded if it would get another label by value than by text.
    """

    def __init__(self, pool: FormulaPool, formulas: tuple[FormulaId, ...], limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self.labelling = Labelling(pool, formulas)
        values = {atom: set(map(Decimal, listed)) for atom, listed in self.labelling.finite.items()}
        self._members = {
            value: frozenset(atom for atom, listed in values.items() if value in listed)
            for value in set().union(*values.values())
        }
        self._automata = {atom: _number_atom(pool.assertion(atom), limits) for atom in self.labelling.others}
        self._by_value = {
            atom: number_dfa.multiple_of(Decimal(1), limits)
            for atom in self._automata
            if pool.assertion(atom) == IsInteger(by_spelling=False)
        }

    def listed(self) -> dict[str, int]:
        """Return the listed texts that satisfy the formula -> 1 + the index of their label."""
        texts = {}
        for text in self.labelling.listed:
            plain = format(Decimal(text), "f")
            truths = [
                automaton.classify(text if self._pool.assertion(atom) == IsInteger(by_spelling=True) else plain)
                for atom, automaton in self._automata.items()
            ]
            hits = [automaton.classify(plain) for automaton in self._by_value.values()]
            spelled = frozenset(atom for atom, listed in self.labelling.finite.items() if text in listed)
            number = self._number(truths, hits, spelled, self._members[Decimal(text)])
            if number:
                texts[text] = number
        return texts

    def unlisted(self) -> Dfa | None:
        """Return the automaton of the unlisted texts, with the numbers of their labels. None if none is possible."""
        if not self.labelling.has_unlisted:
            return None
        sets = [frozenset[FormulaId](), *dict.fromkeys(self._members.values())]
        numbered = {atoms: number for number, atoms in enumerate(sets)}
        named = number_dfa.spellings({value: numbered[atoms] for value, atoms in self._members.items()})
        many = len(self._automata)

        def rest(found: tuple[int, ...]) -> int:
            if not found[0]:
                return 0
            return self._number(found[2 : 2 + many], found[2 + many :], frozenset(), sets[found[1]])

        parts = [number_dfa.plain_number(), named, *self._automata.values(), *self._by_value.values()]
        return combine(parts, rest, self._limits)

    def _number(
        self, truths: Sequence[int], hits: Sequence[int], spelled: frozenset[FormulaId], equal: frozenset[FormulaId]
    ) -> int:
        """Return the number of a label; 0 if text and value of a number give different labels.

        `truths` and `hits` are the results of `_automata` and `_by_value`. The text is listed by the atoms `spelled`,
        and the value by the atoms `equal`.
        """
        true = frozenset(itertools.compress(self._automata, truths))
        by_value = true.difference(self._by_value).union(itertools.compress(self._by_value, hits), equal)
        # If text and value agree on all atoms, one rule is enough.
        holding = dict.fromkeys((true | spelled, by_value))
        return self.labelling.number_of(*(functools.partial(self._is_true, atoms) for atoms in holding))

    def _is_true(self, holding: frozenset[FormulaId], literal: FormulaId) -> bool:
        """Return whether a literal is true if `holding` has all true atoms."""
        atom, positive = self._pool.split(literal)
        return (atom in holding) == positive


@remembered(maxsize=4096)
def _numbers(assertions: tuple[Assertion, ...], limits: Limits) -> Dfa:
    """Return the numbers that satisfy all `assertions`; cached across schemas."""
    return intersect([_number_atom(assertion, limits) for assertion in assertions], limits)


def _number_atom(assertion: Assertion, limits: Limits) -> Dfa:
    if isinstance(assertion, IsInteger):
        return number_dfa.integer()
    if isinstance(assertion, MultipleOf):
        return number_dfa.multiple_of(Decimal(assertion.divisor), limits)
    assert isinstance(assertion, NumberBound)
    return number_dfa.compared(
        Decimal(assertion.bound),
        less=assertion.upper,
        equal=not assertion.exclusive,
        greater=not assertion.upper,
    )
