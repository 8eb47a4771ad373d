"""The languages of strings and numbers that a rule allows, labelled by what its classifiers say."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TypeAlias

from grammar_workers import number_automaton
from grammar_workers.character_automaton import CharacterAutomaton, combine, intersect, literal_set, restrict
from grammar_workers.charset import Charset
from grammar_workers.json_schema.formula import (
    FALSE,
    TRUE,
    FiniteTexts,
    FormulaId,
    FormulaPool,
    IsInteger,
    NumberBound,
    StringLengths,
    StringPattern,
)
from grammar_workers.json_text import SHORT_ESCAPES, encode_string_body
from grammar_workers.machine import UNBOUNDED, Interval
from grammar_workers.options import Limits
from grammar_workers.regex import compile_regex
from grammar_workers.string_machine import ANY_TEXT, has_length

Label: TypeAlias = tuple[bool, ...]
"""Whether each classifier of a rule holds."""


@dataclasses.dataclass(frozen=True)
class TextLanguage:
    """Either finitely many `texts` with the index of their label, or an automaton labelled with index + 1.

    `lengths` bounds the characters of what the automaton accepts; it is used only where there is one label.
    """

    labels: tuple[Label, ...]
    texts: dict[str, int] | None = None
    automaton: CharacterAutomaton | None = None
    lengths: Interval = (0, UNBOUNDED)


EMPTY = TextLanguage(())


@functools.lru_cache(maxsize=4096)
def pattern_automaton(pattern: str, limits: Limits) -> CharacterAutomaton:
    """Shared between schemas: texts in which `pattern` matches somewhere."""
    return compile_regex(pattern, search=True, limits=limits)


@functools.lru_cache(maxsize=256)
def length_automaton(minimum: int, maximum: int | None, limits: Limits) -> CharacterAutomaton:
    """Texts of `minimum` to `maximum` characters, one state per length."""
    bounds = f"{{{minimum},{'' if maximum is None else maximum}}}"
    return compile_regex(rf"[\s\S]{bounds}", search=False, limits=limits)


class Scalars:
    """Works out `TextLanguage`s. `spellable` are the characters that the vocabulary can spell (None: all)."""

    def __init__(self, pool: FormulaPool, limits: Limits, spellable: frozenset[str] | None) -> None:
        self._pool = pool
        self._limits = limits
        self._spellable = spellable

    def strings(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """The strings for which `formulas` (resolved for strings, the demanded one first) hold."""
        if formulas[0] == FALSE or not self._can_spell('"'):
            return EMPTY
        fixed = _fixed_label(formulas)
        leaves = self._pool.conjunction(formulas[0])
        if fixed is not None and leaves is not None:
            return self._plain_strings(leaves, fixed)
        return self._labelled_texts(formulas, self._string_leaf, None)

    def numbers(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """The same for the spellings of numbers."""
        if formulas[0] == FALSE:
            return EMPTY
        fixed = _fixed_label(formulas)
        if fixed is not None and formulas[0] == TRUE:
            return self._spelled(TextLanguage((fixed,), automaton=number_automaton.any_number()))
        leaves = self._pool.conjunction(formulas[0])
        if fixed is not None and leaves is not None:
            assertions = [self._pool.assertion(leaf) for leaf in leaves]
            if not any(isinstance(assertion, FiniteTexts) for assertion in assertions):
                return self._spelled(TextLanguage((fixed,), automaton=_numbers(tuple(assertions), self._limits)))
        return self._labelled_texts(formulas, _number_leaf, number_automaton.plain_number())

    # -- plain conjunctions --------------------------------------------------------------------------------------

    def _plain_strings(self, leaves: Sequence[FormulaId], label: Label) -> TextLanguage:
        minimum, maximum = 0, UNBOUNDED
        automata: list[CharacterAutomaton] = []
        finite: list[FiniteTexts] = []
        for leaf in leaves:
            assertion = self._pool.assertion(leaf)
            if isinstance(assertion, StringLengths):
                minimum = max(minimum, assertion.minimum)
                maximum = min(maximum, UNBOUNDED if assertion.maximum is None else assertion.maximum)
            elif isinstance(assertion, FiniteTexts):
                finite.append(assertion)
            else:
                assert isinstance(assertion, StringPattern)
                automata.append(pattern_automaton(assertion.pattern, self._limits))
        if minimum > maximum:
            return EMPTY
        if finite:
            allowed = set.intersection(*(set(part.texts) for part in finite))
            texts = {
                text: 0
                for text in finite[0].texts
                if text in allowed
                and minimum <= len(text) <= maximum
                and all(automaton.classify(text) for automaton in automata)
            }
            return self._spelled(TextLanguage((label,), texts=texts))
        automaton = intersect(automata, self._limits.max_regex_states) if automata else ANY_TEXT
        return self._spelled(TextLanguage((label,), automaton=automaton, lengths=(minimum, maximum)))

    # -- any Boolean combination -----------------------------------------------------------------------------------

    def _labelled_texts(
        self,
        formulas: tuple[FormulaId, ...],
        leaf_automaton: Callable[[object, Limits], CharacterAutomaton],
        universe: CharacterAutomaton | None,
    ) -> TextLanguage:
        pool = self._pool
        leaves = list(dict.fromkeys(leaf for formula in formulas for leaf in pool.leaves(formula)))
        finite = {leaf: assertion for leaf in leaves if isinstance(assertion := pool.assertion(leaf), FiniteTexts)}
        others = [leaf for leaf in leaves if leaf not in finite]
        automata = [leaf_automaton(pool.assertion(leaf), self._limits) for leaf in others]
        labels: dict[Label, int] = {}

        @functools.cache
        def verdict(truths: tuple[bool, ...], members: frozenset[FormulaId]) -> int:
            """The index + 1 of the label, 0 where the demanded formula fails."""
            holds = dict(zip(others, truths, strict=True))
            values = [
                pool.substitute(formula, lambda leaf: TRUE if holds.get(leaf, leaf in members) else FALSE)
                for formula in formulas
            ]
            if values[0] != TRUE:
                return 0
            return labels.setdefault(tuple(value == TRUE for value in values[1:]), len(labels)) + 1

        # Texts that some finite set names are told apart one by one; all others are outside every finite set.
        texts: dict[str, int] = {}
        for text in dict.fromkeys(text for assertion in finite.values() for text in assertion.texts):
            members = frozenset(leaf for leaf, assertion in finite.items() if text in assertion.texts)
            number = verdict(tuple(bool(automaton.classify(text)) for automaton in automata), members)
            if number:
                texts[text] = number - 1
        rest_formula = pool.substitute(formulas[0], lambda leaf: FALSE if leaf in finite else leaf)
        if rest_formula == FALSE:
            return self._spelled(TextLanguage(tuple(labels), texts=texts))
        named = literal_set({text: 1 for assertion in finite.values() for text in assertion.texts}) if finite else None
        parts = [*([universe] if universe else []), *([named] if named else []), *automata]
        skipped = len(parts) - len(automata)

        def rest(found: tuple[int, ...]) -> int:
            if (universe and not found[0]) or (named and found[skipped - 1]):
                return 0
            return verdict(tuple(map(bool, found[skipped:])), frozenset())

        automaton = combine(parts or [ANY_TEXT], rest if parts else lambda _: verdict((), frozenset()), self._maximum)
        if texts:
            listed = literal_set({text: number + 1 for text, number in texts.items()})
            automaton = combine([automaton, listed], lambda found: found[0] or found[1], self._maximum)
        return self._spelled(TextLanguage(tuple(labels), automaton=automaton))

    @property
    def _maximum(self) -> int:
        return self._limits.max_regex_states

    @staticmethod
    def _string_leaf(assertion: object, limits: Limits) -> CharacterAutomaton:
        if isinstance(assertion, StringLengths):
            return length_automaton(assertion.minimum, assertion.maximum, limits)
        assert isinstance(assertion, StringPattern)
        return pattern_automaton(assertion.pattern, limits)

    # -- what the vocabulary can spell -----------------------------------------------------------------------------

    def _can_spell(self, text: str) -> bool:
        return self._spellable is None or self._spellable.issuperset(text)

    def _spelled(self, language: TextLanguage) -> TextLanguage:
        """`language` less what the vocabulary cannot spell and labels that no text has."""
        if language.texts is not None:
            texts = {t: n for t, n in language.texts.items() if self._can_spell(encode_string_body(t).decode())}
            return dataclasses.replace(language, texts=texts) if texts else EMPTY
        automaton = language.automaton
        assert automaton is not None
        if self._spellable is not None:
            automaton = restrict(automaton, self._writable())
        if automaton.is_empty or not has_length(automaton, language.lengths):
            return EMPTY
        return dataclasses.replace(language, automaton=automaton)

    def _writable(self) -> Charset:
        """The characters whose spelling inside a JSON string the vocabulary has."""
        assert self._spellable is not None
        raw = {c for c in self._spellable if c not in SHORT_ESCAPES and c >= " "}
        escaped = {chr(code) for code in range(0x20)} | set(SHORT_ESCAPES)
        raw |= {c for c in escaped if self._can_spell(encode_string_body(c).decode())}
        return tuple((ord(c), ord(c)) for c in sorted(raw))


def _fixed_label(formulas: tuple[FormulaId, ...]) -> Label | None:
    """The only label there can be, when the classifiers are constants."""
    if all(formula in (TRUE, FALSE) for formula in formulas[1:]):
        return tuple(formula == TRUE for formula in formulas[1:])
    return None


@functools.lru_cache(maxsize=4096)
def _numbers(assertions: tuple[object, ...], limits: Limits) -> CharacterAutomaton:
    """Shared between schemas: numbers for which all `assertions` hold."""
    return intersect([_number_leaf(assertion, limits) for assertion in assertions], limits.max_regex_states)


def _number_leaf(assertion: object, limits: Limits) -> CharacterAutomaton:
    if isinstance(assertion, IsInteger):
        return number_automaton.integer()
    assert isinstance(assertion, NumberBound)
    return number_automaton.compared(
        Decimal(assertion.bound),
        less=assertion.upper,
        equal=not assertion.exclusive,
        greater=not assertion.upper,
    )
