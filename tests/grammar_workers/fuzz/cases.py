"""Case: what one round of the fuzzer is about. It is data, so it can be printed, repeated and made smaller."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

from grammar_workers import GrammarError, GrammarOptions, TokenFSM, compile_grammar
from tests.grammar_workers.fuzz.alphabets import Alphabet
from tests.grammar_workers.fuzz.specifications import Drawn, draw_specification
from tests.grammar_workers.fuzz.spelling import write
from tests.grammar_workers.fuzz.text_judges import is_about_json, json_parts, judge_of
from tests.grammar_workers.fuzz.values import ValueMaker
from tests.grammar_workers.fuzz.verdicts import Judge
from tests.grammar_workers.fuzz.vocabularies import Tokens, draw_tokens

_VALUES = 14
"""Values that are drawn for a schema; as many again nearly fit."""


@dataclasses.dataclass(frozen=True)
class Case:
    """`options` are the arguments of `GrammarOptions`."""

    specification: dict[str, Any]
    options: dict[str, Any]
    tokens: Tokens

    def program(self, text: bytes | None = None) -> str:
        """Python that shows the case, and whether `text` is accepted."""
        arguments = [repr(list(self.tokens.tokens)), repr(list(self.tokens.ends))]
        arguments += [repr(dict(self.tokens.special)), repr(self.tokens.size)] if self.tokens.special else []
        lines = [
            "from grammar_workers import GrammarOptions, Vocabulary, compile_grammar",
            f"vocabulary = Vocabulary({', '.join(arguments)})".replace(
                _EVERY_BYTE, "[*(bytes([b]) for b in range(256)), None]"
            ),
            f"specification = {self.specification!r}",
            f"fsm = compile_grammar(specification, vocabulary, options=GrammarOptions(**{self.options!r}))",
        ]
        if text is not None:
            lines += [
                "state = fsm.initial_state",
                f"for token in vocabulary.encode({text!r}):",
                "    state = fsm.next_state(state, token)",
                "print(state, fsm.is_terminal(state))",
            ]
        return "\n".join(lines)


_EVERY_BYTE = repr([*(bytes([byte]) for byte in range(256)), None])


class Subject:
    """A case once compiled: the automaton, or the refusal; and the judge of its texts."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.options = GrammarOptions(**case.options)
        self.vocabulary = case.tokens.vocabulary()
        self.fsm: TokenFSM | None = None
        self.refusal: GrammarError | None = None
        self.accepted: dict[bytes, bool | None] = {}
        """Texts that have been tried, see `laws.is_accepted`."""
        self.judging_s = 0.0
        """CPU time that the judge has taken."""
        try:
            self.fsm = compile_grammar(case.specification, self.vocabulary, options=self.options)
        except GrammarError as error:
            self.refusal = error

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        return tuple(self.fsm.notes) if self.fsm is not None else ()

    @functools.cached_property
    def judge(self) -> Judge:
        return judge_of(self.case.specification, self.options, self.notes)

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """Counts what is done inside as the judge's."""
        begin = time.process_time()
        try:
            yield
        finally:
            self.judging_s += time.process_time() - begin

    @functools.cached_property
    def is_json(self) -> bool:
        return is_about_json(self.case.specification)

    @functools.cached_property
    def draft(self) -> int:
        parts = json_parts(self.judge)
        return parts[0].draft if parts else 2020

    def write(self, value: Any, rng: random.Random | None = None) -> str:
        return write(value, self.options, self.draft, rng)

    def write_both(self, value: Any) -> list[str]:
        """With numbers spelled plainly, and as `json.dumps` spells them (a listed number has one spelling)."""
        return [write(value, self.options, self.draft, last=last) for last in (False, True)]


@dataclasses.dataclass(frozen=True)
class Draw:
    """A case with texts and values that are worth a look, whether the specification allows them or not."""

    case: Case
    texts: list[str]
    values: list[Any]
    alphabet: Alphabet
    maker: ValueMaker | None


def draw(rng: random.Random) -> Draw:
    """A case made at random."""
    alphabet = Alphabet(rng)
    drawn = draw_specification(rng, alphabet)
    options = draw_options(rng) if is_about_json(drawn.specification) else {}
    values = _values(rng, drawn)
    chosen = GrammarOptions(**options)
    texts = [*drawn.texts, *(write(value, chosen, rng=rng) for value in values)]
    tokens = draw_tokens(rng, texts)
    # Plain data, as a request brings it.
    specification = json.loads(json.dumps(drawn.specification))
    return Draw(Case(specification, options, tokens), texts, values, alphabet, drawn.values)


def _values(rng: random.Random, drawn: Drawn) -> list[Any]:
    if drawn.values is None:
        return []
    near = [drawn.values.near_document() for _ in range(_VALUES)]
    return [*near, *(drawn.values.mutated(rng.choice(near)) for _ in range(_VALUES))]


def draw_options(rng: random.Random) -> dict[str, Any]:
    """Mostly the default options."""
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options["whitespace"] = "flexible"
        if rng.random() < 0.5:
            options["whitespace_limit"] = rng.choice([1, 2, 9])
    if rng.random() < 0.35:
        options["property_order"] = "any"
    if rng.random() < 0.3:
        options["number_spelling"] = "any"
    if rng.random() < 0.25:
        options["escapes"] = "any"
    if rng.random() < 0.1:
        options["additional_properties"] = False
    if rng.random() < 0.1:
        options["format"] = "annotate"
    return options
