"""The formats that are languages of their own: JSON, regular expressions, grammars, whole specifications."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from grammar_workers import tag_formats
from grammar_workers.dfa.dfa import Dfa, combine, literal_set, restrict
from grammar_workers.errors import UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.cfg.reading import guess_syntax, read_grammar
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.json_schema.assertions import JsonType
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.strings import Strings
from grammar_workers.languages.json_values import JsonValues
from grammar_workers.languages.parts import Parts, intersection, read_parts, spellable_text
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.tags.automaton import Value
from grammar_workers.languages.tags.construct import Content
from grammar_workers.languages.tags.free_text import free_text
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

PYTHON_CONSTANTS = {JsonType.NULL: b"None", JsonType.TRUE: b"True", JsonType.FALSE: b"False"}


class TagLeaves:
    """What `Construction` asks for the formats that it does not know; `values` are those that it calls."""

    def __init__(self, compilation: Compilation, json_values: JsonValues) -> None:
        self.values = Values()
        self._compilation = compilation
        self._vocabulary = compilation.vocabulary
        self._options = compilation.options
        self._limits = compilation.limits
        self._json = json_values
        # By identity; each format is kept, so that no other one gets its identity.
        self._json_numbers: dict[int, tuple[object, Value]] = {}

    def format_content(self, format_: tag_formats.Format, pointer: str) -> Content:
        """What a format allows that is a language of its own."""
        match format_:
            case tag_formats.RegexFormat():
                return spellable_text(self._compilation, pointer, RegexSpecification(pattern=format_.pattern))
            case tag_formats.GrammarFormat():
                return self._grammar(format_.grammar, guess_syntax(format_.grammar), pointer, f"{pointer}/grammar")
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
                    self._json.entry(Parts(json=[(pointer, JsonSchemaSpecification(json_schema=value))]))
                except UnsatisfiableError:
                    return literal_set({})
                return restrict(literal_set({format_.text: 1}), self._vocabulary.alphabet)
            case tag_formats.SpecificationFormat():
                if isinstance(format_, ContentFormat):
                    return self._content(pointer, format_.specification, is_open=format_.is_open)
                return self._content(f"{pointer}/specification", format_.specification)
        raise AssertionError(f"a format without a meaning: {format_!r}")

    def _python_literal(self, leaf: PythonLiteral, pointer: str) -> Value:
        if id(leaf) not in self._json_numbers:
            parts = Parts(json=[(pointer, JsonSchemaSpecification(json_schema=leaf.json_schema))])
            # Escapes of half a character mean something else in Python.
            options = self._options.model_copy(update={"escapes": "minimal"})
            entry, _ = self._json.entry(parts, options, inside="/json_schema", constants=PYTHON_CONSTANTS)
            self._json_numbers[id(leaf)] = leaf, self.values.add_json(entry, pointer)
        return self._json_numbers[id(leaf)][1]

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
        """The number of the value that one of these formats, which differ in their schemas alone, allows."""
        format_, pointer = alternatives[0]
        if id(format_) not in self._json_numbers:
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
            self._json_numbers[id(format_)] = format_, self.values.add_json(entry, pointer)
        return self._json_numbers[id(format_)][1]

    def _content(self, pointer: str, specification: GrammarSpecification, *, is_open: bool = False) -> Content:
        """What a specification in a tag allows; `is_open` as in `ContentFormat`."""
        if isinstance(specification, StructuralTagSpecification):
            return format_of(specification, pointer)
        if isinstance(specification, GrammarTextSpecification):
            return self._grammar(specification.text, specification.syntax, pointer, pointer)
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

    def _grammar(self, text: str, syntax: Literal["gbnf", "lark"], pointer: str, inside: str) -> Content:
        """What a grammar allows whose text stands at `inside`."""
        with located(pointer):
            found = read_grammar(text, syntax, self._vocabulary.alphabet, self._limits)
        return self.values.add_grammar(found, inside) if isinstance(found, TransitionNetwork) else found
