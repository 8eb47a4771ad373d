"""Languages of strings and of spellings of numbers, each text labelled by what the caller asks about it.

{"enum": ["a", "b"]} with the question "is it of length 1?"    texts {"a": 0, "b": 0}, labels ((True,),)
{"type": "string"} with the question `{"pattern": "^x"}`       an automaton with accepting states of label 1 and 2,
                                                               labels ((True,), (False,)) in the order of discovery
{"type": "string"} with the question `{"maxLength": 9}`        an automaton with label 1 for any text, starts (0, 10),
                                                               numbers ((1, 2),), labels ((True,), (False,))
"""

from __future__ import annotations

import dataclasses
import itertools
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
    """Either finitely many `texts` with the index of their label, or an automaton, or the `spans` of a text.

    Where length does not matter, `starts` is (0,) and the automaton is labelled with index + 1. Where it does, lengths
    (in characters) fall into intervals that begin at `starts`, and a text that the automaton labels i, with a length in
    interval j, has the label `numbers[i - 1][j]` - 1; it is not of the language where that is 0. Spans have one label,
    and lengths (inclusive) in `span_lengths`.
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
        """Whether length matters beside the automaton."""
        return len(self.starts) > 1

    @property
    def intervals(self) -> list[Interval]:
        """The inclusive intervals of lengths."""
        return [
            (low, UNBOUNDED if high is None else high - 1)
            for low, high in itertools.zip_longest(self.starts, self.starts[1:])
        ]

    def lengths(self, label: int) -> dict[int, Guard]:
        """The numbers of texts to which the automaton gives `label`, and the lengths with which they have them."""
        found: dict[int, list[Interval]] = {}
        for interval, number in zip(self.intervals, self.numbers[label - 1], strict=True):
            if number:
                found.setdefault(number, []).append(interval)
        return {number: union_guards([(interval,) for interval in lengths]) for number, lengths in found.items()}

    def labelled(self, labels: tuple[Label, ...]) -> TextLanguage:
        """The texts that have one of these labels, which are numbered as here."""
        if labels[: len(self.labels)] == self.labels:
            return self
        renumbered = [0, *(labels.index(label) + 1 if label in labels else 0 for label in self.labels)]
        if self.texts is not None:
            texts = {text: renumbered[number + 1] - 1 for text, number in self.texts.items() if renumbered[number + 1]}
            return dataclasses.replace(self, labels=labels, texts=texts)
        assert self.automaton is not None
        if not self.is_counted:
            return dataclasses.replace(self, labels=labels, automaton=relabel(self.automaton, renumbered))
        numbers = tuple(tuple(renumbered[number] for number in row) for row in self.numbers)
        left = [0, *(label if any(row) else 0 for label, row in enumerate(numbers, 1))]
        return dataclasses.replace(self, labels=labels, automaton=relabel(self.automaton, left), numbers=numbers)

    def restricted(self, keeps: Callable[[str], bool], restrict: Callable[[Dfa], Dfa]) -> TextLanguage:
        """The texts that a condition keeps, of an automaton what `restrict` leaves of it.

        Labels that no text has are left out, too, for they promise what cannot be generated.
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
        return language.labelled(tuple(self.labels[number] for number in sorted(used))) if used else EMPTY

    def _used_labels(self) -> set[int]:
        """The indexes of the labels that some text of the automaton has."""
        assert self.automaton is not None
        if not self.is_counted:
            return {label - 1 for label in self.automaton.accepting if label}
        return {
            number - 1
            for label in sorted({*self.automaton.accepting} - {0})
            for number, lengths in self.lengths(label).items()
            if any(has_length(self.automaton, interval, label) for interval in lengths)
        }


EMPTY = TextLanguage(())


def fixed_label(formulas: tuple[FormulaId, ...]) -> Label | None:
    """The only label there can be, when the questions are constants."""
    if all(formula in (TRUE, FALSE) for formula in formulas[1:]):
        return tuple(formula == TRUE for formula in formulas[1:])
    return None
