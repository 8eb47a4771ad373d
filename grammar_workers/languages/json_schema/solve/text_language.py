"""Sets of strings or of texts of numbers. Each text has a label: the truth values of tested formulas.

Three schemas, each with a tested formula, and their sets of texts:

    {"enum": ["a", "b"]}, "has length 1"         texts {"a": 0, "b": 0}, labels ((True,),)
    {"type": "string"}, `{"pattern": "^x"}`      an automaton with accepting states of label 1 and 2,
                                                 labels ((True,), (False,)) in the order of discovery
    {"type": "string"}, `{"maxLength": 9}`       an automaton with label 1 for any text, starts (0, 10),
                                                 numbers ((1, 2),), labels ((True,), (False,))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from grammar_workers.dfa.dfa import Dfa, relabel
from grammar_workers.dfa.spans import Spans
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE
from grammar_workers.pushdown.automaton import UNBOUNDED, Guard, Interval, union_guards
from grammar_workers.pushdown.strings import has_length


@dataclasses.dataclass(frozen=True)
class TextLanguage:
    """A set of texts with labels, given by one of `texts`, `automaton` and `spans`. It is empty if all are None.

    A label is the tuple of the truth values of tested formulas. If `starts` has several entries, the label also depends
    on the length of the text in characters (see `numbers`). Otherwise `numbers` is empty, and a text that `automaton`
    accepts with label n has the label `labels[n - 1]`.

    Attributes:
        labels: The labels that texts can have.
        texts: Text -> 1 + the index of its label in `labels`.
        automaton: The automaton of the texts.
        starts: First length of each interval of lengths, ascending; (0,) if lengths do not matter.
        numbers: `numbers[i - 1][j]` is for texts that `automaton` accepts with label i and whose length is in interval
            j. It is 1 + the index of their label in `labels`, or 0 if the texts are not in the set.
        spans: Substrings of a given text; all have the single label in `labels`.
        span_lengths: Smallest and largest length of `spans`, inclusive; UNBOUNDED for no limit.
    """

    labels: tuple[Label, ...]
    texts: dict[str, int] | None = None
    automaton: Dfa | None = None
    starts: tuple[int, ...] = (0,)
    numbers: tuple[tuple[int, ...], ...] = ()
    spans: Spans | None = None
    span_lengths: Interval = (0, UNBOUNDED)

    @property
    def is_counted(self) -> bool:
        """True if the length of a text helps to decide whether the text is in the set, or which label it has."""
        return len(self.starts) > 1

    @property
    def intervals(self) -> list[Interval]:
        """Intervals of lengths in characters as pairs (first, last), both inclusive. The last one ends at UNBOUNDED."""
        lasts = [start - 1 for start in self.starts[1:]] + [UNBOUNDED]
        return list(zip(self.starts, lasts, strict=True))

    def lengths(self, label: int) -> dict[int, Guard]:
        """Return the lengths at which texts are in the set, for texts that `automaton` accepts with one label.

        Args:
            label: The label of the automaton, a positive number.

        Returns:
            Dict n -> guard (union of intervals of lengths in characters). At these lengths, the texts have the label
            `labels[n - 1]`. At other lengths, they are not in the set.
        """
        found: dict[int, list[Interval]] = {}
        for interval, number in zip(self.intervals, self.numbers[label - 1], strict=True):
            if number:
                found.setdefault(number, []).append(interval)
        return {number: union_guards([(interval,) for interval in lengths]) for number, lengths in found.items()}

    def labelled(self, labels: tuple[Label, ...]) -> TextLanguage:
        """Return the subset of the texts that have one of the given labels (truth values of the tested formulas).

        Args:
            labels: The given labels, which become `labels` of the result in this order. Some may be labels that no text
                has.
        """
        if labels[: len(self.labels)] == self.labels:
            return self
        renumbered = [0, *(labels.index(label) + 1 if label in labels else 0 for label in self.labels)]
        if self.texts is not None:
            texts = {text: renumbered[number] for text, number in self.texts.items() if renumbered[number]}
            return dataclasses.replace(self, labels=labels, texts=texts)
        assert self.automaton is not None
        if not self.is_counted:
            return dataclasses.replace(self, labels=labels, automaton=relabel(self.automaton, renumbered))
        numbers = tuple(tuple(renumbered[number] for number in row) for row in self.numbers)
        left = [0, *(label if any(row) else 0 for label, row in enumerate(numbers, 1))]
        return dataclasses.replace(self, labels=labels, automaton=relabel(self.automaton, left), numbers=numbers)

    def restricted(self, keeps: Callable[[str], bool], restrict: Callable[[Dfa], Dfa]) -> TextLanguage:
        """Return the subset of the texts that meet a condition. Labels that no remaining text has are removed.

        The condition is given in two forms. The method uses the form that fits the representation of the set.

        Args:
            keeps: Function that returns whether a text meets the condition. It is used if the set is given by `texts`.
            restrict: Function that returns an automaton of the texts that meet the condition, with their labels. It is
                used if the set is given by `automaton`.

        Returns:
            The subset. EMPTY if no text remains, or if the set is given by `spans`, which is not supported.
        """
        if self.texts is not None:
            texts = {text: number for text, number in self.texts.items() if keeps(text)}
            used = set(texts.values())
            language = dataclasses.replace(self, texts=texts)
        elif self.automaton is not None:
            language = dataclasses.replace(self, automaton=restrict(self.automaton))
            used = language._used_labels()
        else:
            return EMPTY
        return language.labelled(tuple(self.labels[number - 1] for number in sorted(used))) if used else EMPTY

    def _used_labels(self) -> set[int]:
        """Return the indices of the labels that some text of the automaton has."""
        assert self.automaton is not None
        if not self.is_counted:
            return {*self.automaton.accepting} - {0}
        return {
            number
            for label in sorted({*self.automaton.accepting} - {0})
            for number, lengths in self.lengths(label).items()
            if any(has_length(self.automaton, interval, label) for interval in lengths)
        }


EMPTY = TextLanguage(())


def fixed_label(formulas: tuple[FormulaId, ...]) -> Label | None:
    """Return the only possible label if all tested formulas are constants. None if one of them is not constant.

    Args:
        formulas: The demanded formula, then the tested ones, all resolved (reduced to values of one JSON type).

    Returns:
        The truth values of the tested formulas; () if there are none.
    """
    if all(formula in (TRUE, FALSE) for formula in formulas[1:]):
        return tuple(formula == TRUE for formula in formulas[1:])
    return None
