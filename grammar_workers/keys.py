"""Grammar keys: the content hash under which an automaton is shared by the whole cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from grammar_workers.errors import (
    GrammarError,
    InvalidSpecificationError,
    LimitExceededError,
    UnsupportedFeatureError,
    shortened,
)
from grammar_workers.languages.json_schema.read.keywords import (
    ANNOTATIONS,
    KEYWORDS,
    REFERRING,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    SUBSCHEMAS,
    misspelt,
    schemas_in,
)
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.specification import (
    SPECIFICATION,
    AllOfSpecification,
    GrammarSpecification,
    JsonSchemaSpecification,
    StructuralTagSpecification,
)
from grammar_workers.tag_formats import SpecificationFormat
from grammar_workers.types import GrammarKey
from grammar_workers.validation import place_of, pointer

COMPILER_VERSION = 20
"""Part of every key: raise it whenever the same specification compiles to another language or table layout."""
_TOO_DEEP = "the specification is nested too deeply (fixed limit max_nesting); use `$ref`, or fewer levels"


def parse_specification(specification: GrammarSpecification | Mapping[str, Any]) -> GrammarSpecification:
    """The typed specification; InvalidSpecificationError names what is missing, unknown or of the wrong type."""
    if isinstance(specification, BaseModel):
        return specification
    try:
        return SPECIFICATION.validate_python(specification)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, _ = place_of(SPECIFICATION.core_schema, first["loc"])
        if first["type"] == "unknown_field":
            place = (*place, first["ctx"]["param"])
        raise InvalidSpecificationError(f"malformed specification: {first['msg']}", pointer=pointer(place)) from None
    except RecursionError:
        raise LimitExceededError(_TOO_DEEP) from None


def grammar_key(
    specification: GrammarSpecification | Mapping[str, Any],
    vocabulary_fingerprint: str,
    options: GrammarOptions = GrammarOptions(),  # noqa: B008 - immutable
    resources: Mapping[str, Any] = MappingProxyType({}),
) -> GrammarKey:
    """SHA-256 (hex) of the normalised specification, the vocabulary, the compiler's version, options and resources.

    Annotations (titles, descriptions, examples) do not change the key; the order of properties, which is part of the
    language, does. Raises GrammarError for a malformed specification, and for one that is too large.
    """
    parsed = parse_specification(specification)
    content = canonical_bytes(parsed, Limits().max_specification_bytes, strict=options.on_unsupported == "refuse")
    return content_key(content, vocabulary_fingerprint, options, resources)


def content_key(
    content: bytes,
    vocabulary_fingerprint: str,
    options: GrammarOptions,
    resources: Mapping[str, Any] = MappingProxyType({}),
) -> GrammarKey:
    """The key of a specification whose `canonical_bytes` are `content`."""
    digest = hashlib.sha256()
    for part in (
        content,
        vocabulary_fingerprint.encode(),
        str(COMPILER_VERSION).encode(),
        options.key_text().encode(),
        json.dumps(dict(resources)).encode(),
    ):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def canonical_bytes(specification: GrammarSpecification, most: int, *, strict: bool = False) -> bytes:
    """The normalised specification as JSON: no annotations, keywords sorted, names and values in the given order.

    Annotations stay where a reference may lead into them: they are schemas then.

    Raises LimitExceededError as soon as it is certain that there are more than `most` bytes, and, if `strict`,
    UnsupportedFeatureError for a misspelt keyword, or none at all, in a schema that is strict itself.
    """
    try:
        normalization = _Normalization(most, strict=strict)
        content = normalization.specification(specification)
        if normalization.refers_to_annotations:
            content = _Normalization(most, dropped=frozenset()).specification(specification)
        canonical = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError:
        raise LimitExceededError(_TOO_DEEP) from None
    except (TypeError, ValueError) as error:
        if isinstance(error, GrammarError):
            raise
        raise InvalidSpecificationError(f"the specification is not JSON: {error}") from None
    if len(canonical) > most:
        raise _too_large(most)
    return canonical


def normalized(canonical: bytes) -> GrammarSpecification:
    """The specification behind `canonical_bytes`: what is compiled, so that equal keys mean equal languages."""
    return SPECIFICATION.validate_python(json.loads(canonical))


_HOLD_LISTS = SUBSCHEMAS | SCHEMA_LISTS
_DROPPED = ANNOTATIONS - {"$schema", "contentSchema"}
"""Anchors are looked for inside `contentSchema`."""


class _Normalization:
    """Of one specification, which may have `most` bytes, without the keywords in `dropped`."""

    def __init__(self, most: int, dropped: frozenset[str] = _DROPPED, *, strict: bool = False) -> None:
        self._most = most
        self._strict = strict
        self._misspelt = False
        self._dropped = dropped
        self._bytes = 0
        self._references: list[str] = []

    @property
    def refers_to_annotations(self) -> bool:
        """Whether a reference has the name of an annotation on its way, be it as a keyword or as that of a property."""
        ways = (unquote(reference).partition("#")[2].split("/") for reference in self._references)
        return any(not self._dropped.isdisjoint(way) for way in ways)

    def specification(self, specification: GrammarSpecification, at: str = "") -> dict[str, Any]:
        """Plain data of the part at the JSON Pointer `at`."""
        match specification:
            case JsonSchemaSpecification():
                # Copying a schema takes as long as normalising it.
                content = {"type": specification.type, "schema": self._schema(specification.json_schema)}
                if self._strict and specification.strict and (self._misspelt or _asserts_nothing(content["schema"])):
                    refuse_mistakes(specification.json_schema, at and f"{at}/schema")
                return content
            case AllOfSpecification():
                parts = enumerate(specification.specifications)
                inner = [self.specification(one, f"{at}/specifications/{index}") for index, one in parts]
                return {"type": specification.type, "specifications": inner}
            case StructuralTagSpecification() if specification.format is not None:
                return {"type": specification.type, "format": self._format(specification.format, f"{at}/format")}
            case StructuralTagSpecification():
                tags = [
                    {
                        "begin": tag.begin,
                        "content": self.specification(tag.content, f"{at}/tags/{n}/content"),
                        "end": tag.end,
                    }
                    for n, tag in enumerate(specification.tags)
                ]
                rest = specification.model_dump(exclude={"type", "tags", "format"})
                return {"type": specification.type, "tags": tags, **rest}
        data = specification.model_dump(by_alias=True)
        self._count(data)
        return data

    def _format(self, part: Any, at: str) -> Any:
        """The format at `at`, or what it is made of: what has its default is left out."""
        if isinstance(part, SpecificationFormat):
            return {"type": part.type, "specification": self.specification(part.specification, f"{at}/specification")}
        if isinstance(part, BaseModel):
            given = {
                name: getattr(part, name)
                for name, field in type(part).model_fields.items()
                if name == "type" or field.is_required() or getattr(part, name) != field.default
            }
            return {
                name: self._schema(value) if name == "json_schema" else self._format(value, f"{at}/{name}")
                for name, value in given.items()
            }
        if isinstance(part, list | tuple):
            self._add(len(part) + 1)
            return [self._format(one, f"{at}/{index}") for index, one in enumerate(part)]
        self._count(part)
        return part

    def _schema(self, schema: Any) -> Any:
        """A schema without annotations and with its keywords sorted; what is not a schema stays as it is."""
        if not isinstance(schema, dict):
            self._count(schema)
            return schema
        result = {}
        self._add(1)
        self._note_references(schema)
        for keyword in sorted(schema):
            value = schema[keyword]
            if keyword in self._dropped:
                continue
            self._misspelt = self._misspelt or misspelt(keyword) is not None
            self._add(len(keyword) + 4)
            if keyword in SUBSCHEMAS and not isinstance(value, list):
                value = self._schema(value)
            elif keyword in _HOLD_LISTS and isinstance(value, list):
                self._add(len(value) + 1)
                value = [self._schema(part) for part in value]
            elif keyword in SCHEMA_MAPS and isinstance(value, dict):
                # A list here is that of `dependencies`: names, not schemas.
                self._add(sum(map(len, value)) + 4 * len(value) + 1)
                value = {name: self._schema(part) for name, part in value.items()}
            else:
                self._count(value)
            result[keyword] = value
        return result

    def _count(self, value: Any) -> None:
        """Counts most of the bytes that a value has as JSON, and stops where there are too many."""
        left = [value]
        while left:
            inner = left.pop()
            if isinstance(inner, str):
                self._add(len(inner) + 2)
            elif isinstance(inner, dict):
                self._add(4 * len(inner) + 1)
                self._note_references(inner)
                left += inner.values()
            elif isinstance(inner, list | tuple):
                self._add(len(inner) + 1)
                left += inner
            else:
                self._add(1)

    def _note_references(self, schema: dict[str, Any]) -> None:
        self._references += [schema[name] for name in REFERRING if isinstance(schema.get(name), str)]

    def _add(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._most:
            raise _too_large(self._most)


def refuse_mistakes(schema: Any, place: str) -> None:
    """Raises `UnsupportedFeatureError` for names that are no keywords and nothing else, or for a misspelt keyword."""
    if _asserts_nothing(schema):
        todo = "say what is valid with `type` and `properties`, without a wrapper (`on_unsupported: report` allows it)"
        raise UnsupportedFeatureError(f"schema in which no keyword asserts anything; {todo}", pointer=place)
    _refuse_misspelt(schema, place)


def _asserts_nothing(schema: Any) -> bool:
    """True if the schema has names that are no keywords, and no keyword that asserts anything."""
    names = schema.keys() if isinstance(schema, dict) else ()
    return any(name not in KEYWORDS for name in names) and not any(
        name in KEYWORDS and KEYWORDS[name].asserts for name in names
    )


def _refuse_misspelt(schema: Any, place: str) -> None:
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        at = place + pointer((keyword,))
        if (meant := misspelt(keyword)) is not None:
            todo = f"did you mean `{meant}`? (`on_unsupported: report` ignores it, with a note)"
            raise UnsupportedFeatureError(f"unknown keyword `{shortened(keyword, 64)}`: {todo}", pointer=at)
        for inside, part in schemas_in(keyword, value):
            _refuse_misspelt(part, at + pointer(inside))


def _too_large(most: int) -> LimitExceededError:
    todo = "shorten it (what a JSON Schema repeats: refer to it with `$ref`)"
    return LimitExceededError(
        f"the specification has more than {most} bytes (fixed limit max_specification_bytes); {todo}"
    )
