"""Specifications of every kind for tests of laws that hold of any grammar."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import UnsatisfiableError
from tests.grammar_workers.schemas import TEXTS, schemas

RECURSIVE_GRAMMARS: dict[str, dict[str, Any]] = {
    "ambiguous grammar": {"type": "grammar", "syntax": "gbnf", "text": 'root ::= root root | "a" | "ab" | "é"'},
    "grammar of values": {
        "type": "grammar",
        "syntax": "lark",
        "text": r"""
        start: "[" (start ("," start)*)? "]" | "{" "}" | STRING | /-?[0-9]{1,3}/
        STRING: "\"" /([^"\\]|\\["\\n])*/ "\""
        %ignore " "
        """,
    },
    "grammar with banned words": {
        "type": "all_of",
        "specifications": [
            {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root ")" | [a-z]+ | root "," root'},
            {"type": "banned_words", "words": ["ab", "(("]},
        ],
    },
}
"""What the configuration-set recognizer reads: ambiguity, strings, an intersection."""

CORNER_CASES: dict[str, dict[str, Any]] = {
    "any value": {"type": "json_schema", "schema": True},
    "any object": {"type": "json_object"},
    "string": {"type": "json_schema", "schema": {"type": "string"}},
    "short string": {"type": "json_schema", "schema": {"type": "string", "minLength": 2, "maxLength": 5}},
    "long string": {"type": "json_schema", "schema": {"type": "string", "minLength": 3}},
    "pattern and length": {"type": "json_schema", "schema": {"type": "string", "pattern": "^(ab)*$", "minLength": 3}},
    "number": {"type": "json_schema", "schema": {"type": "number"}},
    "declared and free names": {
        "type": "json_schema",
        "schema": {"type": "object", "properties": {"ab": {"type": "integer"}, "abc": True}, "required": ["abc"]},
    },
    "free names between declared ones": {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"ab": {"type": "integer"}, "q": {"const": "\t"}},
            "required": ["ab"],
        },
    },
    "union of objects": {
        "type": "json_schema",
        "schema": {
            "anyOf": [
                {"type": "object", "properties": {"a": {"const": 1}, "b": {"type": "string"}}, "required": ["a", "b"]},
                {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
            ]
        },
    },
    "tree": {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
    "regex": {"type": "regex", "pattern": "(ab|[^a]b?){1,4}"},
    "unbounded regex": {"type": "regex", "pattern": "a*b?"},
    "choice": {"type": "choice", "choices": ["a", "ab", "abc", "b", ""]},
    "span": {"type": "substring", "text": 'abéab a😀\n"b'},
    "span of whole words": {"type": "substring", "text": "ab éa ab. a9", "whole_words": True},
    "span in any case": {"type": "substring", "text": "aBé ab", "case_sensitive": False, "whole_words": True},
    "span in JSON": {
        "type": "json_schema",
        "schema": {"type": "string", "minLength": 2, "maxLength": 4, "x-turnstile": {"substring_of": 'ab"é\n😀ab\\a€'}},
    },
    "span of whole words in JSON": {
        "type": "json_schema",
        "schema": {
            "type": "array",
            "items": {
                "type": "string",
                "maxLength": 4,
                "x-turnstile": {
                    "substring_of": {"text": "Ab éa aB\n abé", "whole_words": True, "case_sensitive": False}
                },
            },
        },
    },
    "banned words": {"type": "banned_words", "words": ["ab", "aé", "ss"]},
    "banned words in JSON": {
        "type": "all_of",
        "specifications": [{"type": "json_object"}, {"type": "banned_words", "words": ["ab"], "whole_words": True}],
    },
    "JSON and regex": {
        "type": "all_of",
        "specifications": [
            {"type": "json_schema", "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
            {"type": "regex", "pattern": "[^é]{4,20}"},
        ],
    },
    "tool calls": {
        "type": "structural_tag",
        "triggers": ["a{"],
        "tags": [
            {"begin": "a{", "content": {"type": "json_schema", "schema": {"type": "integer"}}, "end": "}"},
        ],
        "at_least_one": True,
    },
    "automaton": {
        "type": "automaton",
        "initial": 0,
        "accepting": [2],
        "transitions": [
            {"from": 0, "to": 1, "pattern": "[ab]"},
            {"from": 0, "to": 3, "pattern": "[^ab]"},
            {"from": 1, "to": 2, "pattern": r"\w"},
            {"from": 2, "to": 0, "pattern": ","},
            {"from": 2, "to": 2, "pattern": "a"},
            {"from": 3, "to": 3, "pattern": "."},
        ],
    },
    **RECURSIVE_GRAMMARS,
    "text with a limit in tokens": {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "a",
            "content": {"type": "any_text", "max_tokens": 3, "excludes": ["ba"]},
            "end": "}]",
        },
    },
}
"""What exercises each part of the pushdown automaton: slices, counters, free names, labels, recursion, literals."""

TOOL_CALL: dict[str, Any] = {
    "type": "structural_tag",
    "triggers": ["<tool>"],
    "tags": [{"begin": "<tool>", "content": {"type": "json_schema", "schema": {"type": "integer"}}, "end": "<tool>"}],
}
"""A region between special tokens of the vocabulary that holds every byte."""

_regexes = st.sampled_from(["a+b?", "(ab|a)*", "[^a]{0,3}", "a{2}|b", r"\d{1,3}(\.\d)?", ".*", "x?y?", ""])
_choices = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4)
SPECIFICATIONS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    schemas().map(lambda schema: {"type": "json_schema", "schema": schema}),
    _regexes.map(lambda pattern: {"type": "regex", "pattern": pattern}),
    _choices.map(lambda choices: {"type": "choice", "choices": choices}),
    st.sampled_from(list(CORNER_CASES.values())),
)


def compile_or_assume(specification: dict[str, Any], vocabulary: Vocabulary) -> TokenFSM:
    """The automaton; an example that nothing matches is none."""
    try:
        return compile_grammar(specification, vocabulary)
    except UnsatisfiableError:
        assume(False)
        raise
