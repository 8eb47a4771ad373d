"""Sets of the strings that satisfy formulas about patterns, formats, lengths and listed texts.

A formula becomes an automaton step by step, from its innermost parts to the whole formula. Each part is minimized
before it is combined with others. The automata do not count characters. Instead, lengths are divided into intervals,
and for each interval the assertions about lengths are replaced by true or false.

The dialects of regular expressions (ECMA-262 and Python) may disagree about a text. A pattern counts as matching only
if it matches in both, and its negation is true only if it matches in neither. The label of a text (the truth values of
tested formulas) has only truth values that are certain in this sense. A text without a certain label is not generated.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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

# A test of property names: the source of a pattern, or the formula of `propertyNames`.
NameTest: TypeAlias = str | FormulaId
# An automaton of property names, and the tests that the undeclared names of each class pass.
Classified: TypeAlias = tuple[Dfa, list[frozenset[NameTest]]]


@remembered(maxsize=256)
def length_automaton(starts: tuple[int, ...], limits: Limits) -> Dfa:
    """Return the DFA of all texts, with one label for each interval of lengths.

    A text whose length is in interval i is accepted with the label 1 + i. LimitExceededError is raised if the last
    interval starts at `max_regex_states` characters or more.

    Args:
        starts: First length of each interval in characters, ascending from 0; the last interval has no end.
        limits: `max_regex_states` limits the number of states.
    """
    longest = starts[-1]
    budget_of(limits).check_states(longest)
    moves = [(target, -1, target) for target in (*range(1, longest + 1), longest)]
    labels = [sum(start <= length for start in starts) for length in range(longest + 1)]
    return Dfa.of((0, 0xD800, 0xE000), moves, labels)


class Strings:
    """Compiler that converts a formula about strings to the set of the matching strings.

    Args:
        pool: Table of all formulas.
        limits: Limits of the compilation.
        spelling: The characters that the vocabulary can encode.
        permitted: DFA of the texts that every string of the document must match, property names included; None for any
            text.

    Attributes:
        classified: Cache: (declared names, tests) -> the classes of property names. Objects that differ only in the
            values of their properties share an entry.
    """

    def __init__(self, pool: FormulaPool, limits: Limits, spelling: Spelling, permitted: Dfa | None = None) -> None:
        self.pool = pool
        self.limits = limits
        self.spelling = spelling
        self.permitted = permitted
        self.classified: dict[Hashable, Classified] = {}

    def language(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """Return the strings that satisfy a demanded formula, with labels (truth values of the tested formulas).

        LimitExceededError is raised if an automaton becomes too large.

        Args:
            formulas: The demanded formula, then the tested ones, all resolved (reduced to values of one type) for
                strings.

        Returns:
            The language without quotes and escapes, restricted to encodable and permitted texts. EMPTY if there are
            none.
        """
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
        """Return the spans of a text if only their length matters, else None.

        Their automaton may be larger than any `Dfa`.
        """
        atoms = self.pool.conjunction(formulas[0])
        if atoms is None or len(formulas) > 1 or self.permitted is not None or not self.spelling.can_spell('"'):
            return None
        assertions = [self.pool.assertion(atom) for atom in atoms]
        asked = [assertion for assertion in assertions if isinstance(assertion, Substring)]
        if len(asked) != 1 or not all(isinstance(assertion, StringLengths | Substring) for assertion in assertions):
            return None
        lengths = [self._lengths(atom) for atom in atoms]
        low = max(low for low, _ in lengths)
        high = min(high for _, high in lengths)
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
        """Return whether a property name is permitted and the vocabulary can encode it."""
        return self.spelling.can_write(name) and (self.permitted is None or bool(self.permitted.classify(name)))

    def pattern(self, source: str) -> Dfa:
        """Return the DFA of the texts that contain a match of a regular expression.

        Both dialects (ECMA-262 and Python) must match the text. An invalid expression raises GrammarError.

        Args:
            source: The regular expression.
        """
        return search_automaton(source, self.limits)

    def doubtful(self, source: str) -> Dfa | None:
        """Return the automaton of the texts that a pattern matches in at least one dialect (ECMA-262 or Python).

        Args:
            source: A regular expression, or the pattern of a format. For a format, the automaton accepts all texts that
                may have the format, including those that the pattern excludes.

        Returns:
            The automaton. None if `source` is not a format's pattern, and the dialects agree on all texts.
        """
        if source in WIDER_SOURCES:
            return self.pattern(WIDER_SOURCES[source])
        either = search_automaton(source, self.limits, True)
        return None if either == self.pattern(source) else either

    def texts(self, formula: FormulaId) -> Dfa:
        """Return the DFA of the strings that satisfy a formula, for `propertyNames`.

        LimitExceededError is raised if the DFA becomes too large.

        Args:
            formula: Number of the formula in the pool.
        """
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
        labelling = Labelling(self.pool, formulas)

        def number(text: str) -> int:
            def truth(literal: FormulaId) -> bool:
                atom, positive = self.pool.split(literal)
                if atom in labelling.finite:
                    return (text in labelling.finite[atom]) == positive
                return bool(self._automaton(self._at_length(literal, len(text))).classify(text))

            return labelling.number_of(truth)

        # Listed texts are classified one by one. All other texts are in none of the finite sets.
        listed = {text: number(text) for text in labelling.listed}
        if labelling.has_unlisted:
            return self._unlisted_texts(labelling, listed)
        return TextLanguage(labelling.labels, texts={text: found for text, found in listed.items() if found})

    def _unlisted_texts(self, labelling: Labelling, listed: Mapping[str, int]) -> TextLanguage:
        certain = labelling.certain
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
            """Return the number of the row of labels, one per interval of lengths; 0 if there is none."""
            if len(found) > len(parts) and found[-1]:
                row = (found[-1] - 1,) * len(starts)
            else:
                held = [
                    [bool(found[places[one]]) if one in places else not one.is_empty for one in column]
                    for column in columns
                ]
                row = tuple(map(labelling.number, held))
            return rows.setdefault(row, len(rows) + 1) if any(row) else 0

        named = [literal_set({text: 1 + number for text, number in listed.items()})] if listed else []
        if not named and not parts:
            automaton = ANY_TEXT if verdict(()) else literal_set({})
        elif not named and len(parts) == 1 and not verdict((0,)):
            automaton = parts[0] if verdict((1,)) else literal_set({})
        else:
            automaton = combine([*parts, *named], verdict, self.limits)
        return _counted(labelling.labels, automaton, starts, list(rows))

    @memoized
    def _lengths(self, literal: FormulaId) -> Interval:
        """Return the lengths that matter to a literal, as an inclusive interval.

        For an assertion about lengths, these are its bounds. A pattern matches no text of any other length.
        """
        _, positive, assertion = self.pool.asserted(literal)
        if isinstance(assertion, StringLengths):
            return assertion.minimum, UNBOUNDED if assertion.maximum is None else assertion.maximum
        if isinstance(assertion, StringPattern) and positive:
            return pattern_and_lengths(assertion.pattern, self.limits)[1]
        return 0, UNBOUNDED

    def _at_length(self, literal: FormulaId, length: int) -> FormulaId:
        """Return what remains of a literal for unlisted texts of one length."""
        _, positive, assertion = self.pool.asserted(literal)
        if isinstance(assertion, FiniteTexts):
            return FALSE if positive else TRUE
        low, high = self._lengths(literal)
        if isinstance(assertion, StringLengths):
            return TRUE if (low <= length <= high) == positive else FALSE
        return literal if low <= length <= high else FALSE

    @memoized
    def _automaton(self, formula: FormulaId) -> Dfa:
        """Return the texts for which a formula without assertions about lengths is certainly true."""
        node = self.pool[formula]
        if isinstance(node, AllOf | AnyOf):
            parts = list(dict.fromkeys(map(self._automaton, node.parts)))
            return (intersect if isinstance(node, AllOf) else unite)(parts, self.limits)
        if formula in (TRUE, FALSE):
            return ANY_TEXT if formula == TRUE else literal_set({})
        _, positive, assertion = self.pool.asserted(formula)
        if isinstance(assertion, Substring):
            automaton = self._spans(assertion).dfa(self.limits)
            return automaton if positive else complement(automaton, self.limits)
        assert isinstance(assertion, StringPattern)
        if positive:
            return pattern_and_lengths(assertion.pattern, self.limits)[0]
        either = self.doubtful(assertion.pattern)
        return complement(self.pattern(assertion.pattern) if either is None else either, self.limits)


def _counted(labels: tuple[Label, ...], automaton: Dfa, starts: list[int], rows: list[tuple[int, ...]]) -> TextLanguage:
    """Return the language of a labelled automaton whose texts have other numbers at other lengths.

    `rows[i - 1][j]` is the number (index of the label plus 1; 0 for none) of a text that `automaton` labels i and whose
    length is in interval j. Intervals that nothing distinguishes are merged.
    """
    kept = [place for place in range(len(starts)) if not place or any(row[place] != row[place - 1] for row in rows)]
    # Lengths that the automaton excludes by itself need no counter and no guards.
    while len(kept) > 1 and not has_length(automaton, (starts[kept[-1]], UNBOUNDED)):
        del kept[-1]
    while len(kept) > 1 and not has_length(automaton, (0, starts[kept[1]] - 1)):
        del kept[0]
    numbers = tuple(tuple(row[place] for place in kept) for row in rows)
    if len(kept) == 1:
        return TextLanguage(labels, automaton=relabel(automaton, [0, *(row[0] for row in numbers)]))
    begins = (0, *(starts[place] for place in kept[1:]))
    return TextLanguage(labels, automaton=automaton, starts=begins, numbers=numbers)
