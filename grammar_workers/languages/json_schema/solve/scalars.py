"""The languages of strings and numbers that a rule allows, labelled by what its classifiers say."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from grammar_workers.budget import budget_of, remembered
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import (
    ANY_TEXT,
    CharacterAutomaton,
    combine,
    intersect,
    literal_set,
    relabel,
    restrict,
)
from grammar_workers.dfa.minimize import DEAD
from grammar_workers.languages.json_schema.labels import Label, Verdicts
from grammar_workers.languages.json_schema.logic import (
    FALSE,
    TRUE,
    FiniteTexts,
    FormulaId,
    FormulaPool,
    IsInteger,
    JsonType,
    MultipleOf,
    NumberBound,
    StringLengths,
    StringPattern,
)
from grammar_workers.languages.json_schema.read.formats import WIDER_SOURCES
from grammar_workers.languages.json_schema.solve import number_dfa
from grammar_workers.languages.json_schema.solve.number_dfa import MAX_DIGITS
from grammar_workers.languages.regex.compile import search_automaton
from grammar_workers.languages.regex.lengths import pattern_and_lengths
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import UNBOUNDED, Interval
from grammar_workers.pushdown.json_text import SHORT_ESCAPES, encode_string_body
from grammar_workers.pushdown.strings import has_length


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


@remembered(maxsize=256)
def length_automaton(minimum: int, maximum: int | None, limits: Limits) -> CharacterAutomaton:
    """Texts of `minimum` to `maximum` characters, one state per length."""
    if maximum is not None and maximum < minimum:
        return literal_set({})
    if maximum == 0:
        return literal_set({"": 1})
    longest = minimum if maximum is None else maximum
    budget_of(limits).check_states(longest)
    following = [*range(1, longest + 1), longest if maximum is None else DEAD]
    moves = [(target, DEAD, target) for target in following]
    return CharacterAutomaton.of((0, 0xD800, 0xE000), moves, (int(n >= minimum) for n in range(longest + 1)))


class Scalars:
    """Works out `TextLanguage`s. `spellable` are the characters that the vocabulary can spell (None: all).

    Every string of the document, property names included, is in the language of `permitted` (None: any text).
    """

    def __init__(
        self,
        pool: FormulaPool,
        limits: Limits,
        spellable: frozenset[str] | None,
        permitted: CharacterAutomaton | None = None,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._spellable = spellable
        self.permitted = permitted
        self.has_long_numbers = False
        """Whether some numbers have been left out because they have more than `MAX_DIGITS` digits."""

    def strings(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """The strings for which `formulas` (resolved for strings, the demanded one first) hold."""
        if formulas[0] == FALSE or not self._can_spell('"'):
            return EMPTY
        fixed = _fixed_label(formulas)
        leaves = self._pool.conjunction(formulas[0])
        if fixed is not None and leaves is not None:
            return self._only_permitted(self._plain_strings(leaves, fixed))
        return self._only_permitted(self._labelled_texts(formulas, self._string_leaf))

    def _only_permitted(self, language: TextLanguage) -> TextLanguage:
        if self.permitted is None or language is EMPTY:
            return language
        if language.texts is not None:
            texts = {t: n for t, n in language.texts.items() if self.permitted.classify(t)}
            return _without_unused_labels(dataclasses.replace(language, texts=texts)) if texts else EMPTY
        assert language.automaton is not None
        automaton = combine(
            [language.automaton, self.permitted], lambda found: found[0] if found[1] else 0, self._limits
        )
        if automaton.is_empty or not has_length(automaton, language.lengths):
            return EMPTY
        return _without_unused_labels(dataclasses.replace(language, automaton=automaton))

    def numbers(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """The same for the spellings of numbers, of at most `MAX_DIGITS` digits."""
        if formulas[0] == FALSE:
            return EMPTY
        return self._short_enough(self._all_numbers(formulas))

    def _all_numbers(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        fixed = _fixed_label(formulas)
        if fixed is not None and formulas[0] == TRUE:
            return self._spelled(TextLanguage((fixed,), automaton=number_dfa.any_number()))
        leaves = self._pool.conjunction(formulas[0])
        if fixed is not None and leaves is not None:
            assertions = [self._pool.assertion(leaf) for leaf in leaves]
            if not any(isinstance(assertion, FiniteTexts) for assertion in assertions):
                return self._spelled(TextLanguage((fixed,), automaton=_numbers(tuple(assertions), self._limits)))
        return self._labelled_numbers(formulas)

    def pattern(self, source: str) -> CharacterAutomaton:
        """The texts in which a pattern matches somewhere."""
        return search_automaton(source, self._limits)

    def doubtful(self, source: str) -> CharacterAutomaton | None:
        """The texts that match a pattern in at least one dialect; None when the dialects agree about all texts.

        Of a format: the texts that may be of it, though its pattern leaves them out.
        """
        if source in WIDER_SOURCES:
            return self.pattern(WIDER_SOURCES[source])
        either = search_automaton(source, self._limits, True)
        return None if either == self.pattern(source) else either

    def texts(self, formula: FormulaId) -> CharacterAutomaton:
        """The strings that satisfy a formula, as one automaton (for `propertyNames`)."""
        language = self.strings((self._pool.resolve(formula, JsonType.STRING),))
        if language.texts is not None:
            return literal_set(dict.fromkeys(language.texts, 1))
        if language.automaton is None:
            return literal_set({})
        minimum, maximum = language.lengths
        if language.lengths == (0, UNBOUNDED):
            return language.automaton
        bounds = length_automaton(minimum, None if maximum == UNBOUNDED else maximum, self._limits)
        return intersect([language.automaton, bounds], self._limits)

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
                automaton, (least, most) = pattern_and_lengths(assertion.pattern, self._limits)
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
            return self._spelled(TextLanguage((label,), texts=texts))
        automaton = intersect(automata, self._limits) if automata else ANY_TEXT
        if maximum == UNBOUNDED and minimum and not has_length(automaton, (0, minimum - 1)):
            # The patterns say so, too; what is not counted needs no guards.
            minimum = 0
        return self._spelled(TextLanguage((label,), automaton=automaton, lengths=(minimum, maximum)))

    # -- any Boolean combination -----------------------------------------------------------------------------------

    def _labelled_texts(
        self, formulas: tuple[FormulaId, ...], leaf_automaton: Callable[[object, Limits], CharacterAutomaton]
    ) -> TextLanguage:
        pool = self._pool
        verdicts = Verdicts(pool, formulas)
        others = verdicts.others
        automata = [leaf_automaton(pool.assertion(leaf), self._limits) for leaf in others]
        doubtful = [
            (index, found)
            for index, leaf in enumerate(others)
            if isinstance(assertion := pool.assertion(leaf), StringPattern)
            and (found := self.doubtful(assertion.pattern)) is not None
        ]

        # Texts that some finite set names are told apart one by one; all others are outside every finite set.
        numbers: dict[str, int] = {}
        for text in verdicts.listed:
            truths = tuple(bool(automaton.classify(text)) for automaton in automata)
            if any(found.classify(text) and not truths[index] for index, found in doubtful):
                numbers[text] = 0
            else:
                numbers[text] = verdicts(truths, verdicts.listing(text))
        if not verdicts.has_unlisted:
            texts = {text: number - 1 for text, number in numbers.items() if number}
            return self._spelled(TextLanguage(verdicts.labels, texts=texts))
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
            return verdicts(truths, frozenset())

        parts = [*automata, *named, *(found for _, found in doubtful)]
        automaton = combine(parts or [ANY_TEXT], rest if parts else lambda _: verdicts((), frozenset()), self._limits)
        return self._spelled(TextLanguage(verdicts.labels, automaton=automaton))

    def _labelled_numbers(self, formulas: tuple[FormulaId, ...]) -> TextLanguage:
        """Numbers are what their values are, and some spellings of a value are not generated: 1.0 where 1 is listed, or
        where an integer is asked for. Such a spelling is left out where it would make a difference.
        """
        pool, limits = self._pool, self._limits
        verdicts = Verdicts(pool, formulas)
        others = verdicts.others
        values = {leaf: set(map(Decimal, listed)) for leaf, listed in verdicts.finite.items()}
        members = {
            value: frozenset(leaf for leaf, listed in values.items() if value in listed)
            for value in set().union(*values.values())
        }
        automata = [_number_leaf(pool.assertion(leaf), limits) for leaf in others]
        by_spelling = [pool.assertion(leaf) == IsInteger(by_spelling=True) for leaf in others]
        by_value = {
            index: number_dfa.multiple_of(Decimal(1), limits)
            for index, leaf in enumerate(others)
            if pool.assertion(leaf) == IsInteger(by_spelling=False)
        }

        def agreed(
            truths: Sequence[int], hits: Iterable[int], equal: frozenset[FormulaId], spelled: frozenset[FormulaId]
        ) -> int:
            """The verdict about a number, 0 where it is another one by value than by spelling."""
            real = list(map(bool, truths))
            for index, hit in zip(by_value, hits, strict=True):
                real[index] = bool(hit)
            found = verdicts(tuple(real), equal)
            return found if found == verdicts(tuple(map(bool, truths)), spelled) else 0

        texts: dict[str, int] = {}
        for text in verdicts.listed:
            plain = format(Decimal(text), "f")
            truths = [a.classify(text if as_is else plain) for a, as_is in zip(automata, by_spelling, strict=True)]
            hits = [automaton.classify(plain) for automaton in by_value.values()]
            number = agreed(truths, hits, members[Decimal(text)], verdicts.listing(text))
            if number:
                texts[text] = number - 1
        if not verdicts.has_unlisted:
            return self._spelled(TextLanguage(verdicts.labels, texts=texts))
        sets = [frozenset[FormulaId](), *dict.fromkeys(members.values())]
        numbered = {leaves: number for number, leaves in enumerate(sets)}
        named = number_dfa.spellings({value: numbered[leaves] for value, leaves in members.items()})
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
        return self._spelled(TextLanguage(verdicts.labels, automaton=automaton))

    @staticmethod
    def _string_leaf(assertion: object, limits: Limits) -> CharacterAutomaton:
        if isinstance(assertion, StringLengths):
            return length_automaton(assertion.minimum, assertion.maximum, limits)
        assert isinstance(assertion, StringPattern)
        return search_automaton(assertion.pattern, limits)

    def _short_enough(self, language: TextLanguage) -> TextLanguage:
        """`language` less the labels that no number of at most `MAX_DIGITS` digits has."""
        automaton = language.automaton
        if language.texts is not None:
            texts = {t: n for t, n in language.texts.items() if sum(map(str.isdecimal, t)) <= MAX_DIGITS}
            self.has_long_numbers |= len(texts) < len(language.texts)
            return dataclasses.replace(language, texts=texts) if texts else EMPTY
        if automaton is None:
            return EMPTY
        fewest = [number_dfa.digits_needed(automaton, n + 1)[0] for n in range(len(language.labels))]
        if max(fewest) <= MAX_DIGITS:
            return language
        self.has_long_numbers = True
        kept = [label for label, digits in zip(language.labels, fewest, strict=True) if digits <= MAX_DIGITS]
        numbers = [0, *(kept.index(label) + 1 if label in kept else 0 for label in language.labels)]
        return (
            dataclasses.replace(language, labels=tuple(kept), automaton=relabel(automaton, numbers)) if kept else EMPTY
        )

    # -- what the vocabulary can spell -----------------------------------------------------------------------------

    def _can_spell(self, text: str) -> bool:
        return self._spellable is None or self._spellable.issuperset(text)

    def _spelled(self, language: TextLanguage) -> TextLanguage:
        """`language` less what the vocabulary cannot spell and labels that no text has."""
        if language.texts is not None:
            texts = {t: n for t, n in language.texts.items() if self._can_spell(encode_string_body(t).decode())}
            if len(texts) < len(language.texts):
                language = dataclasses.replace(language, texts=texts)
            return _without_unused_labels(language) if texts else EMPTY
        automaton = language.automaton
        assert automaton is not None
        if self._spellable is not None:
            automaton = restrict(automaton, self.writable)
            language = dataclasses.replace(language, automaton=automaton)
        if automaton.is_empty or not has_length(automaton, language.lengths):
            return EMPTY
        return _without_unused_labels(language)

    @functools.cached_property
    def writable(self) -> Charset:
        """The characters whose spelling inside a JSON string the vocabulary has."""
        if self._spellable is None:
            return ALL
        raw = {c for c in self._spellable if c not in SHORT_ESCAPES and c >= " "}
        escaped = {chr(code) for code in range(0x20)} | set(SHORT_ESCAPES)
        raw |= {c for c in escaped if self._can_spell(encode_string_body(c).decode())}
        return tuple((ord(c), ord(c)) for c in sorted(raw))


def _without_unused_labels(language: TextLanguage) -> TextLanguage:
    """The same texts; labels that no text has are left out, for they promise what cannot be generated."""
    if language.texts is not None:
        used = set(language.texts.values())
    else:
        assert language.automaton is not None
        used = {label - 1 for label in language.automaton.accepting if label}
    if len(used) == len(language.labels):
        return language
    kept = sorted(used)
    labels = tuple(language.labels[number] for number in kept)
    if language.texts is not None:
        texts = {text: kept.index(number) for text, number in language.texts.items()}
        return dataclasses.replace(language, labels=labels, texts=texts)
    assert language.automaton is not None
    numbers = [0, *(kept.index(number) + 1 if number in used else 0 for number in range(len(language.labels)))]
    return dataclasses.replace(language, labels=labels, automaton=relabel(language.automaton, numbers))


def _fixed_label(formulas: tuple[FormulaId, ...]) -> Label | None:
    """The only label there can be, when the classifiers are constants."""
    if all(formula in (TRUE, FALSE) for formula in formulas[1:]):
        return tuple(formula == TRUE for formula in formulas[1:])
    return None


@remembered(maxsize=4096)
def _numbers(assertions: tuple[object, ...], limits: Limits) -> CharacterAutomaton:
    """Shared between schemas: numbers for which all `assertions` hold."""
    return intersect([_number_leaf(assertion, limits) for assertion in assertions], limits)


def _number_leaf(assertion: object, limits: Limits) -> CharacterAutomaton:
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
