"""Languages of strings and of spellings of numbers, each text labelled by what the caller asks about it.

{"enum": ["a", "b"]} with the question "is it of length 1?"    texts {"a": 0, "b": 0}, labels ((True,),)
{"type": "string"} with the question `{"pattern": "^x"}`       an automaton with accepting states of label 1 and 2,
                                                               labels ((True,), (False,)) in the order of discovery
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from grammar_workers.dfa.dfa import Dfa, relabel
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE
from grammar_workers.pushdown.automaton import UNBOUNDED, Interval
from grammar_workers.pushdown.strings import has_length


@dataclasses.dataclass(frozen=True)
class TextLanguage:
    """Either finitely many `texts` with the index of their label, or an automaton labelled with index + 1.

    `lengths` bounds the characters of what the automaton accepts; it is used only where there is one label.
    """

    labels: tuple[Label, ...]
    texts: dict[str, int] | None = None
    automaton: Dfa | None = None
    lengths: Interval = (0, UNBOUNDED)

    def labelled(self, labels: tuple[Label, ...]) -> TextLanguage:
        """The texts that have one of these labels, which are numbered as here."""
        if labels[: len(self.labels)] == self.labels:
            return self
        numbers = [labels.index(label) + 1 if label in labels else 0 for label in self.labels]
        if self.texts is not None:
            texts = {text: numbers[number] - 1 for text, number in self.texts.items() if numbers[number]}
            return dataclasses.replace(self, labels=labels, texts=texts)
        assert self.automaton is not None
        return dataclasses.replace(self, labels=labels, automaton=relabel(self.automaton, [0, *numbers]))

    def restricted(self, keeps: Callable[[str], bool], restrict: Callable[[Dfa], Dfa]) -> TextLanguage:
        """The texts that a condition keeps, of an automaton what `restrict` leaves of it.

        Labels that no text has are left out, too, for they promise what cannot be generated.
        """
        if self.texts is not None:
            texts = {text: number for text, number in self.texts.items() if keeps(text)}
            used = set(texts.values())
            language = dataclasses.replace(self, texts=texts)
        elif self.automaton is not None:
            automaton = restrict(self.automaton)
            used = (
                {label - 1 for label in automaton.accepting if label} if has_length(automaton, self.lengths) else set()
            )
            language = dataclasses.replace(self, automaton=automaton)
        else:
            return EMPTY
        return language.labelled(tuple(self.labels[number] for number in sorted(used))) if used else EMPTY


EMPTY = TextLanguage(())


def fixed_label(formulas: tuple[FormulaId, ...]) -> Label | None:
    """The only label there can be, when the questions are constants."""
    if all(formula in (TRUE, FALSE) for formula in formulas[1:]):
        return tuple(formula == TRUE for formula in formulas[1:])
    return None
