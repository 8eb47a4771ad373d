"""The parts of a specification by kind, and the intersection of its regular parts.

An `all_of` is flattened into its parts, each with its JSON Pointer. *Regular* parts become DFAs over characters here.
`combine` compiles the other parts: recursive grammars, JSON, structural tags and automata over token IDs.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from grammar_workers.budget import limits_at
from grammar_workers.dfa.dfa import Dfa, intersect, literal_set, restrict
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError
from grammar_workers.languages import automaton as automata
from grammar_workers.languages.banned_words import banned_words
from grammar_workers.languages.cfg.reading import GrammarOfFormats, read_grammar
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.positions import names_tokens, positions
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.regex.parse import read_regex
from grammar_workers.languages.regex.written_out import largest_part
from grammar_workers.languages.substring import spans
from grammar_workers.languages.tags.triggers import ContentFormat
from grammar_workers.languages.token_pattern import token_pattern
from grammar_workers.options import Limits
from grammar_workers.scalar_values import has_surrogate
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

EMPTY = (
    "no text matches the specification: it contradicts itself (check anchors, lookarounds and classes), "
    "or the vocabulary lacks a character"
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
    """Parts of one specification, sorted by kind.

    The parts are the members of an `all_of`. Any other specification is its own single part.

    Attributes:
        regular: Pairs (JSON Pointer, part) of the parts that become a DFA over characters.
        automata: DFAs of the context-free grammars whose language is regular, without JSON Pointers.
        recursive: Pairs (JSON Pointer, rules) of the context-free grammars whose language is not known to be regular.
        json: Pairs (JSON Pointer, part) of the JSON Schemas and `json_object` parts.
        tags: Pairs (JSON Pointer, part) of the structural tags, and of the grammars that contain tokens or JSON values.
        tokens: Pairs (JSON Pointer, part) of the parts that list token IDs.
    """

    regular: list[tuple[str, RegularSpecification]] = dataclasses.field(default_factory=list)
    automata: list[Dfa] = dataclasses.field(default_factory=list)
    recursive: list[tuple[str, TransitionNetwork]] = dataclasses.field(default_factory=list)
    json: list[tuple[str, JsonSchemaSpecification | JsonObjectSpecification]] = dataclasses.field(default_factory=list)
    tags: list[tuple[str, StructuralTagSpecification | ContentFormat]] = dataclasses.field(default_factory=list)
    tokens: list[tuple[str, PositionsSpecification | AutomatonSpecification]] = dataclasses.field(default_factory=list)

    def beyond_regular(self) -> list[tuple[str, str]]:
        """Return the parts (members of an `all_of`) that do not become DFAs over characters.

        A specification with more than one entry in this list cannot be compiled.

        Returns:
            (JSON Pointer, description for messages) of each part. All JSON parts together have one entry.
        """
        return [
            *((pointer, "a recursive grammar") for pointer, _ in self.recursive),
            *((pointer, "structural_tag") for pointer, _ in self.tags),
            *((pointer, over_tokens(part)) for pointer, part in self.tokens),
            *((pointer, "a JSON specification") for pointer, _ in self.json[:1]),
        ]


def read_parts(compilation: Compilation, pointer: str, specification: GrammarSpecification) -> Parts:
    """Sort the parts of a specification (the members of an `all_of`) by kind, and parse its grammar texts.

    Malformed or unsupported grammar texts raise GrammarError with their JSON Pointer.

    Args:
        compilation: Vocabulary and limits. Warnings about user-defined automata are appended to its `notes`.
        pointer: JSON Pointer of `specification` within the whole specification. Empty: it is the whole one.
        specification: A specification of any type. An `all_of` is flattened.

    Returns:
        The parts by kind.
    """
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
            elif isinstance(found, GrammarOfFormats):
                # A grammar with tokens or JSON values is compiled as a structural tag that contains nothing else.
                parts.tags.append((inside, ContentFormat(specification=part, is_open=False)))
            else:
                parts.recursive.append((inside, found))
        else:
            assert isinstance(part, RegularSpecification)
            parts.regular.append((inside, part))
    return parts


def any_text(compilation: Compilation, pointer: str, part: RegularSpecification) -> Dfa:
    """Return a DFA of all texts that a regular specification allows, also texts that the vocabulary cannot encode.

    A regular specification is one that a DFA over characters can represent. A malformed part raises
    InvalidSpecificationError, and a part that is too large LimitExceededError. Both errors have the JSON Pointer of the
    part.

    Args:
        compilation: Its limits are used.
        pointer: JSON Pointer of the part within the whole specification.
        part: The part to compile.

    Returns:
        A DFA over characters. It may accept no text.
    """
    with located(pointer), limits_at(*inside_of(part, compilation.limits)):
        return _dfa_of(part, compilation.limits)


def spellable_text(compilation: Compilation, pointer: str, part: RegularSpecification) -> Dfa:
    """Return a DFA of the texts that a regular specification allows and that the vocabulary can encode.

    A regular specification is one that a DFA over characters can represent. A malformed part raises
    InvalidSpecificationError, and a part that is too large LimitExceededError. Both errors have the JSON Pointer of the
    part.

    Args:
        compilation: Its vocabulary and limits are used.
        pointer: JSON Pointer of the part within the whole specification.
        part: The part to compile.

    Returns:
        A DFA over characters. It may accept no text.
    """
    return restrict(any_text(compilation, pointer, part), compilation.vocabulary.alphabet)


def intersection(compilation: Compilation, parts: Parts, pointer: str | None = None) -> Dfa:
    """Return one DFA of the texts that all regular parts of a specification allow and that the vocabulary can encode.

    Regular parts are members of an `all_of` that a DFA over characters can represent. Parts that are malformed or too
    large raise GrammarError.

    Args:
        compilation: Its vocabulary and limits are used.
        parts: Parts of a specification: `regular` and `automata` are used, and at least one of them is not empty.
        pointer: JSON Pointer for the error if the intersection is empty. None: the error has no pointer.

    Returns:
        A DFA over characters that accepts at least one text.

    Raises:
        UnsatisfiableError: No text matches all regular parts.
    """
    languages = [*(spellable_text(compilation, pointer, part) for pointer, part in parts.regular), *parts.automata]
    automaton = intersect(languages, compilation.limits)
    if automaton.is_empty:
        raise UnsatisfiableError(
            EMPTY
            if len(languages) == 1
            else "no text matches all specifications (`banned_words` count as one); change one of them",
            pointer=pointer,
        )
    return automaton


def inside_of(part: GrammarSpecification, limits: Limits, pointer: str = "") -> tuple[str, int | None]:
    """Return the location of the largest element of a specification, for messages about an exceeded limit.

    A malformed regex raises InvalidSpecificationError.

    Args:
        part: The part that exceeds a limit.
        limits: Bounds on parsing, if `part` is a regex.
        pointer: JSON Pointer of the part.

    Returns:
        Pair (JSON Pointer, character offset). For a regex: `pointer`, and the offset of the largest subpattern (0 if
        there is none). For other specifications: the pointer of the longest field, and None.
    """
    if isinstance(part, RegexSpecification):
        with located(pointer):
            return pointer, largest_part(read_regex(part.pattern, limits)) or 0
    sizes = {len(value): name for name, value in part if name != "type" and isinstance(value, list | str)}
    # In a structural tag with a format, all lists are empty.
    return f"{pointer}/{sizes[max(sizes)] if any(sizes) else 'format'}", None


def over_tokens(part: PositionsSpecification | AutomatonSpecification) -> str:
    """Return the name of a specification that lists token IDs, for messages, such as `an automaton over token ids`.

    Args:
        part: The specification.
    """
    return "positions of token ids" if isinstance(part, PositionsSpecification) else "an automaton over token ids"


def flattened(pointer: str, specification: GrammarSpecification) -> list[tuple[str, GrammarSpecification]]:
    """Return the parts of a specification in order, as (JSON Pointer, part) pairs.

    Args:
        pointer: JSON Pointer of `specification` within the whole specification.
        specification: A specification of any type.

    Returns:
        The members of an `all_of`. A nested `all_of` is replaced by its members. For any other specification, one pair:
        `pointer` and the specification itself.
    """
    if not isinstance(specification, AllOfSpecification):
        return [(pointer, specification)]
    return [
        part
        for index, inner in enumerate(specification.specifications)
        for part in flattened(f"{pointer}/specifications/{index}", inner)
    ]


def _dfa_of(specification: RegularSpecification, limits: Limits) -> Dfa:
    """Return the DFA of a specification. Pointers of GrammarError are relative to the specification."""
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
    """Return the choices of a specification in order, each text once.

    Args:
        specification: The `choice` specification.

    Returns:
        At least one text. No text contains a lone surrogate.

    Raises:
        InvalidSpecificationError: A choice contains a lone surrogate, so that no text equals it. The pointer names the
            choice.
    """
    for index, choice in enumerate(specification.choices):
        if has_surrogate(choice):
            raise InvalidSpecificationError(
                f"the choice {choice!a} holds a lone surrogate", pointer=f"/choices/{index}"
            )
    return list(dict.fromkeys(specification.choices))
