"""The parts of a specification by how they are compiled, and what its regular parts allow together."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from grammar_workers.budget import limits_at
from grammar_workers.dfa.dfa import Dfa, intersect, literal_set, restrict
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError
from grammar_workers.languages import automaton as automata
from grammar_workers.languages.banned_words import banned_words
from grammar_workers.languages.cfg.reading import RuleOfFormats, read_grammar
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.positions import names_tokens, positions
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.regex.parse import read_regex
from grammar_workers.languages.regex.written_out import largest_part
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.languages.substring import spans
from grammar_workers.languages.tags.triggers import ContentFormat
from grammar_workers.languages.token_pattern import token_pattern
from grammar_workers.options import Limits
from grammar_workers.specification import (
    AllOfSpecification,
    AutomatonSpecification,
    BannedWordsSpecification,
    ChoiceSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonObjectSpecification,
    JsonSchemaSpecification,
    PatternSpecification,
    PositionsSpecification,
    RegexSpecification,
    StructuralTagSpecification,
    SubstringSpecification,
)

RegularSpecification: TypeAlias = (
    RegexSpecification
    | ChoiceSpecification
    | PatternSpecification
    | PositionsSpecification
    | AutomatonSpecification
    | SubstringSpecification
    | BannedWordsSpecification
)


@dataclasses.dataclass
class Parts:
    """The parts of one specification by how they are compiled, each with its JSON Pointer inside the whole one.

    `automata` are those of grammars that turned out to be regular.
    """

    regular: list[tuple[str, RegularSpecification]] = dataclasses.field(default_factory=list)
    automata: list[Dfa] = dataclasses.field(default_factory=list)
    recursive: list[tuple[str, TransitionNetwork]] = dataclasses.field(default_factory=list)
    json: list[tuple[str, JsonSchemaSpecification | JsonObjectSpecification]] = dataclasses.field(default_factory=list)
    tags: list[tuple[str, StructuralTagSpecification | ContentFormat]] = dataclasses.field(default_factory=list)
    tokens: list[tuple[str, PositionsSpecification | AutomatonSpecification]] = dataclasses.field(default_factory=list)

    def beyond_regular(self) -> list[tuple[str, str]]:
        """(pointer, what it is) of the parts of which one may be combined with regular ones; JSON ones count once."""
        return [
            *((pointer, "a recursive grammar") for pointer, _ in self.recursive),
            *((pointer, "structural_tag") for pointer, _ in self.tags),
            *((pointer, over_tokens(part)) for pointer, part in self.tokens),
            *((pointer, "a JSON specification") for pointer, _ in self.json[:1]),
        ]


def read_parts(compilation: Compilation, pointer: str, specification: GrammarSpecification) -> Parts:
    """The parts of the specification at `pointer`; raises GrammarError."""
    parts = Parts()
    for inside, part in flattened(pointer, specification):
        if isinstance(part, AutomatonSpecification):
            compilation.notes += automata.left_out(part)
        if isinstance(part, JsonSchemaSpecification | JsonObjectSpecification):
            parts.json.append((inside, part))
        elif isinstance(part, StructuralTagSpecification):
            parts.tags.append((inside, part))
        elif (isinstance(part, PositionsSpecification) and names_tokens(part.allowed)) or (
            isinstance(part, AutomatonSpecification) and automata.names_tokens(part)
        ):
            parts.tokens.append((inside, part))
        elif isinstance(part, GrammarTextSpecification):
            with located(inside):
                found = read_grammar(part.text, part.syntax, compilation.vocabulary.alphabet, compilation.limits)
            if isinstance(found, Dfa):
                parts.automata.append(found)
            elif isinstance(found, RuleOfFormats):
                # What holds tokens and values is a structural tag, of which it is all.
                parts.tags.append((inside, ContentFormat(specification=part, is_open=False)))
            else:
                parts.recursive.append((inside, found))
        else:
            assert isinstance(part, RegularSpecification)
            parts.regular.append((inside, part))
    return parts


def any_text(compilation: Compilation, pointer: str, part: RegularSpecification) -> Dfa:
    """The texts that a regular part allows."""
    with located(pointer), limits_at(*inside_of(part, compilation.limits)):
        return _dfa_of(part, compilation.limits)


def spellable_text(compilation: Compilation, pointer: str, part: RegularSpecification) -> Dfa:
    """The same, as far as the vocabulary can spell them."""
    return restrict(any_text(compilation, pointer, part), compilation.vocabulary.alphabet)


def intersection(compilation: Compilation, parts: Parts, pointer: str | None = None) -> Dfa:
    """The texts that all regular parts allow; raises UnsatisfiableError at `pointer` when there are none."""
    languages = [*(spellable_text(compilation, pointer, part) for pointer, part in parts.regular), *parts.automata]
    automaton = intersect(languages, compilation.limits)
    if automaton.is_empty:
        raise UnsatisfiableError(
            "no text matches the pattern" if len(languages) == 1 else "no text matches all specifications",
            pointer=pointer,
        )
    return automaton


def inside_of(part: GrammarSpecification, limits: Limits, pointer: str = "") -> tuple[str, int | None]:
    """Return what is largest in a part at `pointer`, for limits that it exceeds: a pointer and a position."""
    if isinstance(part, RegexSpecification):
        with located(pointer):
            return pointer, largest_part(read_regex(part.pattern, limits)) or 0
    sizes = {len(value): name for name, value in part if name != "type" and isinstance(value, list | str)}
    # A structural tag with a format has empty lists.
    return f"{pointer}/{sizes[max(sizes)] if any(sizes) else 'format'}", None


def over_tokens(part: PositionsSpecification | AutomatonSpecification) -> str:
    """What such a part is called in messages."""
    return "positions of token ids" if isinstance(part, PositionsSpecification) else "an automaton over token ids"


def flattened(pointer: str, specification: GrammarSpecification) -> list[tuple[str, GrammarSpecification]]:
    """The parts of an `all_of`, those of nested ones included, with their pointers; of anything else, itself."""
    if not isinstance(specification, AllOfSpecification):
        return [(pointer, specification)]
    return [
        part
        for index, inner in enumerate(specification.specifications)
        for part in flattened(f"{pointer}/specifications/{index}", inner)
    ]


def _dfa_of(specification: RegularSpecification, limits: Limits) -> Dfa:
    """The automaton of the texts that a specification allows; raises GrammarError, pointers are relative to it."""
    if isinstance(specification, RegexSpecification):
        return compile_regex(specification.pattern, search=False, limits=limits)
    if isinstance(specification, PatternSpecification):
        return token_pattern(specification.elements, limits)
    if isinstance(specification, PositionsSpecification):
        return positions(specification.allowed, limits)
    if isinstance(specification, AutomatonSpecification):
        return automata.automaton(specification, limits)
    if isinstance(specification, BannedWordsSpecification):
        return banned_words(
            specification.words,
            limits,
            case_sensitive=specification.case_sensitive,
            whole_words=specification.whole_words,
        )
    if isinstance(specification, SubstringSpecification):
        return spans(specification, limits).dfa(limits)
    return literal_set(dict.fromkeys(choices(specification), 1))


def choices(specification: ChoiceSpecification) -> list[str]:
    """The distinct choices in order; InvalidSpecificationError for one that no text is equal to."""
    for index, choice in enumerate(specification.choices):
        if has_surrogate(choice):
            raise InvalidSpecificationError(
                f"the choice {choice!a} holds a lone surrogate", pointer=f"/choices/{index}"
            )
    return list(dict.fromkeys(specification.choices))
