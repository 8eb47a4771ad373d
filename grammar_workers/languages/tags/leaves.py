"""Compiler of leaf formats (nodes of structural tags in other languages), such as JSON and regular expressions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from grammar_workers import tag_formats
from grammar_workers.dfa.dfa import Dfa, combine, literal_set, restrict
from grammar_workers.errors import UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.cfg.reading import GrammarOfFormats, Syntax, guess_syntax, read_grammar
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.json_schema.assertions import JsonType
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.strings import Strings
from grammar_workers.languages.json_values import JsonValues
from grammar_workers.languages.parts import Parts, intersection, read_parts, spellable_text
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.tags.automaton import Value
from grammar_workers.languages.tags.free_text import free_text
from grammar_workers.languages.tags.lower import GrammarRule
from grammar_workers.languages.tags.parameters import PythonLiteral, parameters_of
from grammar_workers.languages.tags.texts import JSON_TEXTS, Constant, StringTexts
from grammar_workers.languages.tags.triggers import ContentFormat, format_of
from grammar_workers.languages.tags.values import Values
from grammar_workers.specification import (
    BannedWordsSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonSchemaSpecification,
    RegexSpecification,
    StructuralTagSpecification,
)

# The content of a leaf format: texts, a value with its own rule, the start rule of a grammar, or another format and its
# JSON Pointer.
Content: TypeAlias = Dfa | Value | GrammarRule | tuple[tag_formats.Format, str]

# What `syntax` of the format `grammar` names; xgrammar calls GBNF `ebnf`.
_SYNTAXES: dict[str, Syntax] = {"ebnf": "gbnf", "lark": "lark"}
# The names of JSON's constants in Python.
PYTHON_CONSTANTS = {JsonType.NULL: b"None", JsonType.TRUE: b"True", JsonType.FALSE: b"False"}


class TagLeaves:
    """Compiler of leaf formats (nodes of a structural tag in other languages).

    Args:
        compilation: Vocabulary, options and limits of the compilation.
        json_values: Compiler of JSON values.

    Attributes:
        values: The JSON values and grammar rules that the formats call. The methods add to it.
    """

    def __init__(self, compilation: Compilation, json_values: JsonValues) -> None:
        self.values = Values()
        self._compilation = compilation
        self._vocabulary = compilation.vocabulary
        self._options = compilation.options
        self._limits = compilation.limits
        self._json = json_values

    def format_content(self, format_: tag_formats.Format, pointer: str) -> Content:
        """Compile a leaf format (node of a structural tag in another language).

        A malformed, unsupported or too large format raises GrammarError with its JSON Pointer.

        Args:
            format_: A leaf format, such as a regular expression.
            pointer: JSON Pointer of the format, for errors.

        Returns:
            One of:

            - a DFA of the allowed texts,
            - the number of a value (called rule) in `values`,
            - the start rule of a grammar,
            - an equivalent format and its JSON Pointer.

        Raises:
            AssertionError: The format is not a leaf format.
        """
        match format_:
            case tag_formats.RegexFormat():
                return spellable_text(self._compilation, pointer, RegexSpecification(pattern=format_.pattern))
            case tag_formats.GrammarFormat():
                syntax = _SYNTAXES[format_.syntax] if format_.syntax else guess_syntax(format_.grammar)
                return self._grammar(format_.grammar, syntax, pointer)
            case tag_formats.JsonSchemaFormat() if format_.style == "json":
                return self.json_value([(format_, pointer)])
            case tag_formats.JsonSchemaFormat() | tag_formats.QwenXmlParameterFormat() | tag_formats.ParametersFormat():
                return parameters_of(format_, pointer, self._options.whitespace_limit), pointer
            case PythonLiteral():
                return self._python_literal(format_, pointer)
            case StringTexts():
                return self._string_texts(format_, pointer)
            case Constant():
                value = {**format_.json_schema, "const": json.loads(format_.text)}
                try:
                    self._json.entry(Parts(json=[(pointer, JsonSchemaSpecification(json_schema=value))]), explain=False)
                except UnsatisfiableError:
                    return literal_set({})
                return restrict(literal_set({format_.text: 1}), self._vocabulary.alphabet)
            case tag_formats.SpecificationFormat():
                if isinstance(format_, ContentFormat):
                    return self._content(pointer, format_.specification, is_open=format_.is_open)
                return self._content(f"{pointer}/specification", format_.specification)
        raise AssertionError(f"a format without a meaning: {format_!r}")

    def _python_literal(self, leaf: PythonLiteral, pointer: str) -> Value:
        parts = Parts(json=[(pointer, JsonSchemaSpecification(json_schema=leaf.json_schema))])
        # Python reads an escape of half a surrogate pair in another way.
        options = self._options.model_copy(update={"escapes": "minimal"})
        entry, _ = self._json.entry(parts, options, inside="/json_schema", constants=PYTHON_CONSTANTS)
        return self.values.add_json(entry, pointer)

    def _string_texts(self, leaf: StringTexts, pointer: str) -> Dfa:
        pool = FormulaPool(self._limits)
        formula = self._json.formula(leaf.json_schema, pool, self._options, pointer)
        found = Strings(pool, self._limits, Spelling(self._vocabulary.spellable)).texts(pool.canonical(formula))
        automata = [
            found,
            free_text({}, [text for text in leaf.excludes if text], self._vocabulary, self._limits),
        ]
        if leaf.but_json:
            automata.append(compile_regex(JSON_TEXTS, search=False, limits=self._limits))
        verdict = combine(automata, lambda found: int(found[0] and found[1] and not any(found[2:])), self._limits)
        return restrict(verdict, self._vocabulary.alphabet)

    def json_value(self, alternatives: Sequence[tuple[tag_formats.JsonSchemaFormat, str]]) -> int:
        """Add a JSON value that at least one of several formats allows.

        A malformed, unsupported or too large schema raises GrammarError with its JSON Pointer.

        Args:
            alternatives: (format, JSON Pointer) pairs. The formats differ only in their schemas.

        Returns:
            The number of the value in `values`.

        Raises:
            UnsupportedFeatureError: `max_whitespace_cnt` is not from 1 to 64, or an excluded text may occur outside
                strings.
        """
        format_, pointer = alternatives[0]
        parts = Parts(
            json=[(place, JsonSchemaSpecification(json_schema=one.json_schema)) for one, place in alternatives]
        )
        if format_.excludes:
            banned = BannedWordsSpecification(words=format_.excludes, case_sensitive=True)
            parts.regular.append((f"{pointer}/excludes", banned))
        changes: dict[str, Any] = {"property_order": "any"} if format_.any_order else {}
        if format_.max_whitespace_cnt is not None:
            if not 0 < format_.max_whitespace_cnt <= 64:
                raise UnsupportedFeatureError(
                    "white space is limited to between 1 and 64 characters", pointer=f"{pointer}/max_whitespace_cnt"
                )
            changes |= {"whitespace": "flexible", "whitespace_limit": format_.max_whitespace_cnt}
        options = self._options.model_copy(update=changes)
        entry, left = self._json.entry(parts, options, any_of=True, inside="/json_schema")
        if left.regular:
            raise UnsupportedFeatureError(
                "a text that may occur in JSON outside of strings", pointer=f"{pointer}/excludes"
            )
        return self.values.add_json(entry, pointer)

    def _content(self, pointer: str, specification: GrammarSpecification, *, is_open: bool = False) -> Content:
        """Return the content that a specification in a tag allows; `is_open` as in `ContentFormat`."""
        if isinstance(specification, StructuralTagSpecification):
            return format_of(specification, pointer)
        if isinstance(specification, GrammarTextSpecification):
            return self._grammar(specification.text, specification.syntax, pointer)
        parts = read_parts(self._compilation, pointer, specification)
        beyond = parts.beyond_regular()
        if not beyond:
            return intersection(self._compilation, parts, pointer)
        if not parts.json or len(beyond) > 1:
            where, what = beyond[-1]
            together = "" if parts.tokens else " together with another specification"
            raise UnsupportedFeatureError(f"{what}{together} inside a tag", pointer=where)
        entry, parts = self._json.entry(parts)
        if parts.regular or parts.automata:
            raise UnsupportedFeatureError(
                "a restriction of raw text inside a tag; put it beside the structural_tag in all_of",
                pointer=parts.regular[0][0] if parts.regular else pointer,
            )
        return self.values.add_json(entry, pointer, is_open=is_open)

    def _grammar(self, text: str, syntax: Syntax, pointer: str) -> Content:
        """Return the content that a grammar allows."""
        with located(pointer):
            found = read_grammar(text, syntax, self._vocabulary.alphabet, self._limits)
        if isinstance(found, GrammarOfFormats):
            return self.values.add_grammar(found.network, pointer, found.formats)
        return found if isinstance(found, Dfa) else self.values.add_grammar(found, pointer)
