"""The languages of strings that formulas allow: patterns, formats, lengths and listed texts, and what they decide.

Formulas become automata from the inside out, each part minimal before it is combined with others. Lengths stay outside
of them: lengths that no part tells apart are one interval, for each of which the formulas are rewritten without what
they say about lengths. Where the dialects of regular expressions disagree about a text, a pattern counts as matching
only where both say so, and its negation holds only where neither says so; a text is labelled only with what is certain.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from grammar_workers.budget import budget_of, remembered
from grammar_workers.dfa.dfa import ANY_TEXT, Dfa, combine, complement, intersect, literal_set, relabel, unite
from grammar_workers.dfa.spans import Spans
from grammar_workers.languages.json_schema.assertions import (
    FiniteTexts,
    FormulaId,
    JsonType,
    StringLengths,
    StringPattern,
)
from grammar_workers.languages.json_schema.labels import Label, Labelling
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, AllOf, AnyOf, FormulaPool
from grammar_workers.languages.json_schema.read.formats import WIDER_SOURCES
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.text_language import EMPTY, TextLanguage
from grammar_workers.languages.regex.compile import search_automaton
from grammar_workers.languages.regex.lengths import pattern_and_lengths
from grammar_workers.languages.substring import spans
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import UNBOUNDED, Interval
from grammar_workers.pushdown.strings import has_length
from grammar_workers.specification import Substring

NameTest: TypeAlias = str | FormulaId
"""The source of a pattern, or the formula of `propertyNames`."""
Classified: TypeAlias = tuple[Dfa, list[frozenset[NameTest]]]
"""An automaton of property names, and which tests the undeclared names of each class pass."""


@remembered(maxsize=256)
def length_automaton(starts: tuple[int, ...], limits: Limits) -> Dfa:
    """Any text, labelled 1 + i if its length is in the interval i of those that begin at `starts` (the first at 0)."""
    longest = starts[-1]
    budget_of(limits).check_states(longest)
    moves = [(target, -1, target) for target in (*range(1, longest + 1), longest)]
    labels = [sum(start <= length for start in starts) for length in range(longest + 1)]
    return Dfa.of((0, 0xD800, 0xE000), moves, labels)


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
        return self._span_language(formulas) or self._general_language(formulas)

    def _general_language(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        if formulas[0] == FALSE or not self.spelling.can_spell('"'):
            return EMPTY
        language = self.spelling.spelled(self._labelled_texts(formulas))
        permitted = self.permitted
        if permitted is None:
            return language
        return language.restricted(
            lambda text: bool(permitted.classify(text)),
            lambda automaton: combine([automaton, permitted], lambda found: found[0] if found[1] else 0, self.limits),
        )

    def _span_language(self, formulas: tuple[FormulaId, ...]) -> TextLanguage | None:
        """The spans of a text where nothing but their length matters; their automaton may be larger than any `Dfa`."""
        pool, lengths, asked = self.pool, [], []
        for literal in pool.literals(formulas[0]):
            atom, positive = pool.split(literal)
            assertion = pool.assertion(atom)
            if isinstance(assertion, StringLengths):
                lengths.append(self._lengths(literal))
            elif isinstance(assertion, Substring):
                asked.append(assertion)
            if not positive or not isinstance(assertion, StringLengths | Substring):
                return None
        if len(formulas) > 1 or len(asked) != 1 or self.permitted is not None or not self.spelling.can_spell('"'):
            return None
        if set(pool.conjuncts(formulas[0])) != set(pool.literals(formulas[0])):
            return None
        low = max([0, *(low for low, _ in lengths)])
        high = min([UNBOUNDED, *(high for _, high in lengths)])
        found = self._spans(asked[0])
        if not found.ends_everywhere and low > 1 and high < UNBOUNDED:
            return None
        if low > min(high, found.longest) or (low and found.shortest > high):
            return EMPTY
        return TextLanguage(((),), spans=found, span_lengths=(low, high))

    @memoized
    def _spans(self, asked: Substring) -> Spans:
        return spans(asked, self.limits, self.spelling.writable)

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
        language = self._general_language((self.pool.resolve(formula, JsonType.STRING),))
        if language.texts is not None:
            return literal_set(dict.fromkeys(language.texts, 1))
        if language.automaton is None:
            return literal_set({})
        if not language.is_counted:
            return language.automaton
        numbers = [(0,) * len(language.starts), *language.numbers]
        parts = [language.automaton, length_automaton(language.starts, self.limits)]
        return combine(parts, lambda found: numbers[found[0]][found[1] - 1], self.limits)

    # -- what is certain of a text --------------------------------------------------------------------------------

    def _labelled_texts(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        demanded, *asked = formulas
        # Each question with its negation: of a text on which the dialects disagree, neither may be certain.
        certain = [demanded, *(one for formula in asked for one in (formula, self.pool.not_(formula)))]
        labelling, labels = Labelling(self.pool, formulas), _Labels()
        # Texts that some finite set names are told apart one by one; all others are outside every finite set.
        listed = {text: labels.number([self._holds(one, text) for one in certain]) for text in labelling.listed}
        if labelling.has_unlisted:
            return self._unlisted_texts(certain, listed, labels)
        return TextLanguage(labels.known, texts={text: number - 1 for text, number in listed.items() if number})

    def _holds(self, formula: FormulaId, text: str) -> bool:
        """Whether a formula certainly holds of a text."""

        def truth(literal: FormulaId) -> bool:
            atom, positive = self.pool.split(literal)
            assertion = self.pool.assertion(atom)
            if isinstance(assertion, FiniteTexts):
                return (text in self._members(atom)) == positive
            return bool(self._automaton(self._at_length(literal, len(text))).classify(text))

        return self.pool.holds(formula, truth)

    @memoized
    def _members(self, atom: FormulaId) -> frozenset[str]:
        """The texts of a finite set: an `enum` may have thousands, each of which is looked up."""
        assertion = self.pool.assertion(atom)
        return frozenset(assertion.texts if isinstance(assertion, FiniteTexts) else ())

    def _unlisted_texts(self, certain: Sequence[FormulaId], listed: Mapping[str, int], labels: _Labels) -> TextLanguage:
        literals = dict.fromkeys(literal for formula in certain for literal in self.pool.literals(formula))
        bounds = {bound for literal in literals for low, high in [self._lengths(literal)] for bound in (low, high + 1)}
        starts = sorted({0, *(bound for bound in bounds if bound <= UNBOUNDED)})
        columns = []
        for start in starts:
            changes = {literal: self._at_length(literal, start) for literal in literals}
            columns.append([self._automaton(self.pool.rewrite(formula, changes)) for formula in certain])
        distinct = dict.fromkeys(one for column in columns for one in column)
        parts = [one for one in distinct if one != ANY_TEXT and not one.is_empty]
        places = {one: place for place, one in enumerate(parts)}
        rows: dict[tuple[int, ...], int] = {}

        def verdict(found: tuple[int, ...]) -> int:
            """The number of what the labels of the parts, and of listed texts, mean at each length; 0 for nothing."""
            if len(found) > len(parts) and found[-1]:
                row = (found[-1] - 1,) * len(starts)
            else:
                held = [
                    [bool(found[places[one]]) if one in places else not one.is_empty for one in column]
                    for column in columns
                ]
                row = tuple(map(labels.number, held))
            return rows.setdefault(row, len(rows) + 1) if any(row) else 0

        named = [literal_set({text: 1 + number for text, number in listed.items()})] if listed else []
        if not named and not parts:
            automaton = ANY_TEXT if verdict(()) else literal_set({})
        elif not named and len(parts) == 1 and not verdict((0,)):
            automaton = parts[0] if verdict((1,)) else literal_set({})
        else:
            automaton = combine([*parts, *named], verdict, self.limits)
        return _counted(labels.known, automaton, starts, list(rows))

    @memoized
    def _lengths(self, literal: FormulaId) -> Interval:
        """The lengths beyond which a literal holds of no text, or of every one; or those of which it tells."""
        atom, positive = self.pool.split(literal)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, StringLengths):
            return assertion.minimum, UNBOUNDED if assertion.maximum is None else assertion.maximum
        if isinstance(assertion, StringPattern) and positive:
            return pattern_and_lengths(assertion.pattern, self.limits)[1]
        return 0, UNBOUNDED

    def _at_length(self, literal: FormulaId, length: int) -> FormulaId:
        """What is left of a literal for unlisted texts of a length."""
        atom, positive = self.pool.split(literal)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, FiniteTexts):
            return FALSE if positive else TRUE
        low, high = self._lengths(literal)
        if isinstance(assertion, StringLengths):
            return TRUE if (low <= length <= high) == positive else FALSE
        return literal if low <= length <= high else FALSE

    @memoized
    def _automaton(self, formula: FormulaId) -> Dfa:
        """The texts for which a formula about patterns certainly holds."""
        node = self.pool[formula]
        if isinstance(node, AllOf | AnyOf):
            parts = list(dict.fromkeys(map(self._automaton, node.parts)))
            return (intersect if isinstance(node, AllOf) else unite)(parts, self.limits)
        if formula in (TRUE, FALSE):
            return ANY_TEXT if formula == TRUE else literal_set({})
        atom, positive = self.pool.split(formula)
        assertion = self.pool.assertion(atom)
        if isinstance(assertion, Substring):
            automaton = self._spans(assertion).dfa(self.limits)
            return automaton if positive else complement(automaton, self.limits)
        assert isinstance(assertion, StringPattern)
        if positive:
            return pattern_and_lengths(assertion.pattern, self.limits)[0]
        either = self.doubtful(assertion.pattern)
        return complement(self.pattern(assertion.pattern) if either is None else either, self.limits)


class _Labels:
    """The labels of texts, numbered from 1 as they are found."""

    def __init__(self) -> None:
        self._numbers: dict[Label, int] = {}

    @property
    def known(self) -> tuple[Label, ...]:
        return tuple(self._numbers)

    def number(self, certain: Sequence[bool]) -> int:
        """That of the label, by what is certain: the demanded formula, then each question and its negation.

        0 where the demanded one is not certain, or neither a question nor its negation.
        """
        demanded, holding, failing = certain[0], tuple(certain[1::2]), certain[2::2]
        if not demanded or not all(map(operator.or_, holding, failing)):
            return 0
        return self._numbers.setdefault(holding, len(self._numbers) + 1)


def _counted(labels: tuple[Label, ...], automaton: Dfa, starts: list[int], rows: list[tuple[int, ...]]) -> TextLanguage:
    """The language of the texts of label i with a length in the interval j that have the number `rows[i - 1][j]`.

    Lengths that nothing tells apart are one interval.
    """
    kept = [place for place in range(len(starts)) if not place or any(row[place] != row[place - 1] for row in rows)]
    # What the patterns say by themselves is not counted and needs no guards.
    while len(kept) > 1 and not has_length(automaton, (starts[kept[-1]], UNBOUNDED)):
        del kept[-1]
    while len(kept) > 1 and not has_length(automaton, (0, starts[kept[1]] - 1)):
        del kept[0]
    numbers = tuple(tuple(row[place] for place in kept) for row in rows)
    if len(kept) == 1:
        return TextLanguage(labels, automaton=relabel(automaton, [0, *(row[0] for row in numbers)]))
    begins = (0, *(starts[place] for place in kept[1:]))
    return TextLanguage(labels, automaton=automaton, starts=begins, numbers=numbers)
