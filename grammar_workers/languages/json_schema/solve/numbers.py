"""The languages of numbers that formulas allow: bounds, multiples and listed values, and what they decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
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
    """The `TextLanguage`s of numbers, of at most `MAX_DIGITS` digits before the point, for formulas of one pool."""

    def __init__(self, pool: FormulaPool, limits: Limits, spelling: Spelling) -> None:
        self._pool = pool
        self._limits = limits
        self._spelling = spelling
        self.has_long_numbers = False
        """True if some numbers are left out because they have more than `MAX_DIGITS` digits before the point."""

    def language(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """The numbers for which `formulas` (resolved for numbers, the demanded one first) hold."""
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
        """Numbers are what their values are, and some spellings of a value are not generated: 1.0 where 1 is listed, or
        where an integer is asked for. Such a spelling is left out where it would make a difference.
        """
        pool, limits = self._pool, self._limits
        labelling = Labelling(pool, formulas)
        others = labelling.others
        values = {atom: set(map(Decimal, listed)) for atom, listed in labelling.finite.items()}
        members = {
            value: frozenset(atom for atom, listed in values.items() if value in listed)
            for value in set().union(*values.values())
        }
        automata = [_number_atom(pool.assertion(atom), limits) for atom in others]
        by_spelling = [pool.assertion(atom) == IsInteger(by_spelling=True) for atom in others]
        by_value = {
            index: number_dfa.multiple_of(Decimal(1), limits)
            for index, atom in enumerate(others)
            if pool.assertion(atom) == IsInteger(by_spelling=False)
        }

        def agreed(
            truths: Sequence[int], hits: Iterable[int], equal: frozenset[FormulaId], spelled: frozenset[FormulaId]
        ) -> int:
            """The verdict about a number, 0 where it is another one by value than by spelling."""
            real = list(map(bool, truths))
            for index, hit in zip(by_value, hits, strict=True):
                real[index] = bool(hit)
            found = labelling(tuple(real), equal)
            return found if found == labelling(tuple(map(bool, truths)), spelled) else 0

        texts: dict[str, int] = {}
        for text in labelling.listed:
            plain = format(Decimal(text), "f")
            truths = [a.classify(text if as_is else plain) for a, as_is in zip(automata, by_spelling, strict=True)]
            hits = [automaton.classify(plain) for automaton in by_value.values()]
            number = agreed(truths, hits, members[Decimal(text)], labelling.listing(text))
            if number:
                texts[text] = number - 1
        if not labelling.has_unlisted:
            return TextLanguage(labelling.labels, texts=texts)
        sets = [frozenset[FormulaId](), *dict.fromkeys(members.values())]
        numbered = {atoms: number for number, atoms in enumerate(sets)}
        named = number_dfa.spellings({value: numbered[atoms] for value, atoms in members.items()})
        many = len(automata)

        def rest(found: tuple[int, ...]) -> int:
            if not found[0]:
                return 0
            return agreed(found[2 : 2 + many], found[2 + many :], sets[found[1]], frozenset())

        parts = [number_dfa.plain_number(), named, *automata, *by_value.values()]
        automaton = combine(parts, rest, limits)
        if texts:
            listed = literal_set({text: number + 1 for text, number in texts.items()})
            automaton = combine([automaton, listed], lambda found: found[0] or found[1], limits)
        return TextLanguage(labelling.labels, automaton=automaton)

    def _short_enough(self, language: TextLanguage) -> TextLanguage:
        """`language` less the labels that no number of so few digits has."""
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


@remembered(maxsize=4096)
def _numbers(assertions: tuple[Assertion, ...], limits: Limits) -> Dfa:
    """Shared between schemas: numbers for which all `assertions` hold."""
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
