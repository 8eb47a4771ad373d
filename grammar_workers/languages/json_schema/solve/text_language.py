"""Languages of strings and of spellings of numbers, each text labelled by what the caller asks about it.

{"enum": ["a", "b"]} with the question "is it of length 1?"    texts {"a": 0, "b": 0}, labels ((True,),)
{"type": "string"} with the question `{"pattern": "^x"}`       an automaton with accepting states of label 1 and 2,
                                                               labels ((True,), (False,)) in the order of discovery
"""

from __future__ import annotations

import dataclasses

from grammar_workers.dfa.dfa import Dfa, relabel
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE
from grammar_workers.pushdown.automaton import UNBOUNDED, Interval


@dataclasses.dataclass(frozen=True)
class TextLanguage:
    """Either finitely many `texts` with the index of their label, or an automaton labelled with index + 1.

    `lengths` bounds the characters of what the automaton accepts; it is used only where there is one label.
    """

    labels: tuple[Label, ...]
    texts: dict[str, int] | None = None
    automaton: Dfa | None = None
    lengths: Interval = (0, UNBOUNDED)


EMPTY = TextLanguage(())


def without_unused_labels(language: TextLanguage) -> TextLanguage:
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


def fixed_label(formulas: tuple[FormulaId, ...]) -> Label | None:
    """The only label there can be, when the questions are constants."""
    if all(formula in (TRUE, FALSE) for formula in formulas[1:]):
        return tuple(formula == TRUE for formula in formulas[1:])
    return None
