"""Constraints on an output: constructors for each kind, and the conversion of Python types to specifications.

A specification is the typed model of a constraint (`grammar_workers.specification`). Each constructor returns one, and
raises InvalidSpecificationError, a GrammarError, for an argument of the wrong type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PydanticUserError

from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.keys import parse_specification
from grammar_workers.specification import KINDS, GrammarSpecification
from grammar_workers.specification_json import parse_specification_json, schema_of_type, schema_or_specification


def Regex(pattern: str) -> GrammarSpecification:
    """Return the constraint that the regular expression `pattern` matches the whole output."""
    return parse_specification({"type": "regex", "pattern": pattern})


def Choice(choices: Sequence[str]) -> GrammarSpecification:
    """Return the constraint that the output equals one of the texts in `choices`."""
    return parse_specification({"type": "choice", "choices": list(choices)})


def Lark(text: str) -> GrammarSpecification:
    """Return the constraint that a context-free grammar in Lark's notation, with the rule `start`, allows."""
    return parse_specification({"type": "grammar", "syntax": "lark", "text": text})


def GBNF(text: str) -> GrammarSpecification:
    """Return the constraint that a context-free grammar in llama.cpp's notation, with the rule `root`, allows."""
    return parse_specification({"type": "grammar", "syntax": "gbnf", "text": text})


def StructuralTag(tags: Sequence[Mapping[str, Any]] = (), **fields: Any) -> GrammarSpecification:
    """Return the constraint of free text with constrained regions (tags), such as tool calls.

    Args:
        tags: Regions: objects with the texts `begin` and `end`, and `content`, which is a constraint of any kind that
            `compile` accepts.
        fields: `triggers`: list of beginnings of `begin`; after a trigger in the free text, one of the tags must
            follow. `at_least_one=True`: the text has a tag. `stop_after_first=True`: the text ends after the first tag.
            Instead of all these, `format`: a rule for the whole text, see `docs/structural-tags.md`.
    """
    parts = [
        {name: specification_of(part) if name == "content" else part for name, part in tag.items()} for tag in tags
    ]
    return parse_specification({"type": "structural_tag", "tags": parts, **fields})


def BannedWords(words: Sequence[str], **flags: bool) -> GrammarSpecification:
    """Return the constraint that the output contains none of the words.

    Args:
        words: Words or phrases. A word is found anywhere in the text, however the text is tokenized.
        flags: `case_sensitive=True`: upper and lower case differ. `whole_words=True`: a word is found only between
            characters that are not letters, digits or underscores.
    """
    return parse_specification({"type": "banned_words", "words": list(words), **flags})


def AllOf(*constraints: Any) -> GrammarSpecification:
    """Return the constraint that all of `constraints` allow the output; each of a kind that `compile` accepts."""
    return parse_specification({"type": "all_of", "specifications": list(map(specification_of, constraints))})


def specification_of(constraint: Any) -> GrammarSpecification:
    """Return the specification (typed model) of a constraint. GrammarError is raised if it is malformed.

    Args:
        constraint: One of these: a result of a constructor of this module; a type for which pydantic makes a JSON
            Schema (pydantic model, dataclass, `TypedDict`, `Enum`, `Literal`, `list[int]`, ...) or its `TypeAdapter`; a
            JSON Schema as a dictionary, a boolean or JSON text; a specification as a dictionary with its `type`.

    Raises:
        InvalidSpecificationError: Pydantic makes no JSON Schema of the type. The message has pydantic's reason.
    """
    if isinstance(constraint, tuple(KINDS.values())):
        return constraint  # type: ignore[return-value]
    if isinstance(constraint, str):
        constraint = parse_specification_json(constraint)
    elif not isinstance(constraint, dict | bool):
        try:
            constraint = schema_of_type(constraint)
        except PydanticUserError as error:
            raise InvalidSpecificationError(f"pydantic makes no JSON Schema of {constraint!r}: {error}") from error
    return parse_specification(schema_or_specification(constraint))
