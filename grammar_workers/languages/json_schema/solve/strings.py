"""The languages of strings that formulas allow: patterns, formats, lengths and listed texts, and what they decide."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from grammar_workers.budget import budget_of, remembered
from grammar_workers.dfa.dfa import ANY_TEXT, Dfa, combine, intersect, literal_set
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.languages.json_schema.assertions import (
    Assertion,
    FiniteTexts,
    FormulaId,
    JsonType,
    StringLengths,
    StringPattern,
)
from grammar_workers.languages.json_schema.labels import Label, Labelling
from grammar_workers.languages.json_schema.logic import FALSE, FormulaPool
from grammar_workers.languages.json_schema.memo import memoized
from grammar_workers.languages.json_schema.read.formats import WIDER_SOURCES
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.text_language import EMPTY, TextLanguage, fixed_label
from grammar_workers.languages.regex.compile import search_automaton
from grammar_workers.languages.regex.lengths import pattern_and_lengths
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import UNBOUNDED
from grammar_workers.pushdown.strings import has_length

NameTest: TypeAlias = str | FormulaId
"""The source of a pattern, or the formula of `propertyNames`."""
Classified: TypeAlias = tuple[Dfa, list[frozenset[NameTest]]]
"""An automaton of property names, and which tests the undeclared names of each class pass."""


@remembered(maxsize=256)
def length_automaton(minimum: int, maximum: int | None, limits: Limits) -> Dfa:
    """Texts of `minimum` to `maximum` characters, one state per length."""
    if maximum is not None and maximum < minimum:
        return literal_set({})
    if maximum == 0:
        return literal_set({"": 1})
    longest = minimum if maximum is None else maximum
    budget_of(limits).check_states(longest)
    following = [*range(1, longest + 1), longest if maximum is None else DEAD]
    moves = [(target, DEAD, target) for target in following]
    return Dfa.of((0, 0xD800, 0xE000), moves, (int(n >= minimum) for n in range(longest + 1)))


class Strings:
    """The `TextLanguage`s of strings, for formulas of one pool.

    Every string of the document, property names included, is in the language of `permitted` (None: any text).
    `classified` remembers classes of property names by names and tests: alternatives of one schema make many objects
    that differ in the values of properties alone.
    """

    def __init__(self, pool: FormulaPool, limits: Limits, spelling: Spelling, permitted: Dfa | None = None) -> None:
        self.pool = pool
        self.limits = limits
        self.spelling = spelling
        self.permitted = permitted
        self.classified: dict[Hashable, Classified] = {}

    def language(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """The strings for which `formulas` (resolved for strings, the demanded one first) hold."""
        if formulas[0] == FALSE or not self.spelling.can_spell('"'):
            return EMPTY
        fixed = fixed_label(formulas)
        atoms = self.pool.conjunction(formulas[0])
        if fixed is not None and atoms is not None:
            return self._only_permitted(self._plain_strings(atoms, fixed))
        return self._only_permitted(self._labelled_texts(formulas))

    def _only_permitted(self, language: TextLanguage) -> TextLanguage:
        permitted = self.permitted
        if permitted is None:
            return language
        return language.restricted(
            lambda text: bool(permitted.classify(text)),
            lambda automaton: combine([automaton, permitted], lambda found: found[0] if found[1] else 0, self.limits),
        )

    @memoized
    def can_name(self, name: str) -> bool:
        """True for a property name that may come at all, and that the vocabulary can write."""
        return self.spelling.can_write(name) and (self.permitted is None or bool(self.permitted.classify(name)))

    def pattern(self, source: str) -> Dfa:
        """The texts in which a pattern matches somewhere."""
        return search_automaton(source, self.limits)

    def doubtful(self, source: str) -> Dfa | None:
        """The texts that match a pattern in at least one dialect; None when the dialects agree about all texts.

        Of a format: the texts that may be of it, though its pattern leaves them out.
        """
        if source in WIDER_SOURCES:
            return self.pattern(WIDER_SOURCES[source])
        either = search_automaton(source, self.limits, True)
        return None if either == self.pattern(source) else either

    def texts(self, formula: FormulaId) -> Dfa:
        """The strings that satisfy a formula, as one automaton (for `propertyNames`)."""
        language = self.language((self.pool.resolve(formula, JsonType.STRING),))
        if language.texts is not None:
            return literal_set(dict.fromkeys(language.texts, 1))
        if language.automaton is None:
            return literal_set({})
        minimum, maximum = language.lengths
        if language.lengths == (0, UNBOUNDED):
            return language.automaton
        bounds = length_automaton(minimum, None if maximum == UNBOUNDED else maximum, self.limits)
        return intersect([language.automaton, bounds], self.limits)

    # -- plain conjunctions --------------------------------------------------------------------------------------

    def _plain_strings(self, atoms: Sequence[FormulaId], label: Label) -> TextLanguage:
        minimum, maximum = 0, UNBOUNDED
        automata: list[Dfa] = []
        finite: list[FiniteTexts] = []
        for atom in atoms:
            assertion = self.pool.assertion(atom)
            if isinstance(assertion, StringLengths):
                minimum = max(minimum, assertion.minimum)
                maximum = min(maximum, UNBOUNDED if assertion.maximum is None else assertion.maximum)
            elif isinstance(assertion, FiniteTexts):
                finite.append(assertion)
            else:
                assert isinstance(assertion, StringPattern)
                automaton, (least, most) = pattern_and_lengths(assertion.pattern, self.limits)
                automata.append(automaton)
                minimum, maximum = max(minimum, least), min(maximum, most)
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
            return self.spelling.spelled(TextLanguage((label,), texts=texts))
        automaton = intersect(automata, self.limits) if automata else ANY_TEXT
        if maximum == UNBOUNDED and minimum and not has_length(automaton, (0, minimum - 1)):
            # The patterns say so, too; what is not counted needs no guards.
            minimum = 0
        return self.spelling.spelled(TextLanguage((label,), automaton=automaton, lengths=(minimum, maximum)))

    # -- any Boolean combination -----------------------------------------------------------------------------------

    def _labelled_texts(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        pool = self.pool
        labelling = Labelling(pool, formulas)
        others = labelling.others
        automata = [_string_atom(pool.assertion(atom), self.limits) for atom in others]
        doubtful = [
            (index, found)
            for index, atom in enumerate(others)
            if isinstance(assertion := pool.assertion(atom), StringPattern)
            and (found := self.doubtful(assertion.pattern)) is not None
        ]

        # Texts that some finite set names are told apart one by one; all others are outside every finite set.
        numbers: dict[str, int] = {}
        for text in labelling.listed:
            truths = tuple(bool(automaton.classify(text)) for automaton in automata)
            if any(found.classify(text) and not truths[index] for index, found in doubtful):
                numbers[text] = 0
            else:
                numbers[text] = labelling(truths, labelling.listing(text))
        if not labelling.has_unlisted:
            texts = {text: number - 1 for text, number in numbers.items() if number}
            return self.spelling.spelled(TextLanguage(labelling.labels, texts=texts))
        named = [literal_set({text: 1 + number for text, number in numbers.items()})] if numbers else []
        many = len(automata)

        def rest(found: tuple[int, ...]) -> int:
            if named and found[many]:
                return found[many] - 1
            truths = tuple(map(bool, found[:many]))
            hits = found[many + len(named) :]
            if any(hit and not truths[i] for (i, _), hit in zip(doubtful, hits, strict=True)):
                # The dialects disagree about this text, so it is not generated.
                return 0
            return labelling(truths, frozenset())

        parts = [*automata, *named, *(found for _, found in doubtful)]
        automaton = combine(parts or [ANY_TEXT], rest if parts else lambda _: labelling((), frozenset()), self.limits)
        return self.spelling.spelled(TextLanguage(labelling.labels, automaton=automaton))


def _string_atom(assertion: Assertion, limits: Limits) -> Dfa:
    if isinstance(assertion, StringLengths):
        return length_automaton(assertion.minimum, assertion.maximum, limits)
    assert isinstance(assertion, StringPattern)
    return search_automaton(assertion.pattern, limits)
