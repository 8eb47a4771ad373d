"""Grammar keys: hashes of specifications, by which the processes of a cluster share compiled grammars.

A specification is normalized before it is hashed: annotations are dropped and keywords are sorted, so that equivalent
specifications have equal keys. The compiler compiles the normalized specification.
"""

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
    Tag,
)
from grammar_workers.types import GrammarKey
from grammar_workers.validation import FrozenModel, place_of, pointer

# Part of every key. Raise it by one in every change after which some specification compiles to another automaton: other
# allowed outputs, or other tables for the same outputs (docs/versioning.md). CHANGELOG.md names the new number.
COMPILER_VERSION = 22
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_TOO_DEEP = "the specification is nested too deeply (fixed limit max_nesting); use `$ref`, or fewer levels"


def parse_specification(specification: GrammarSpecification | Mapping[str, Any]) -> GrammarSpecification:
    """Validate a specification (constraint of an output), and return it as a typed model.

    Args:
        specification: Specification as plain data with `type`. A typed model is returned unchanged.

    Returns:
        The typed model.

    Raises:
        InvalidSpecificationError: A field is missing, unknown or of the wrong type. The pointer names the field.
        LimitExceededError: The specification is nested too deeply.
    """
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
    """Return the grammar key of a specification, which is a SHA-256 in hexadecimal.

    The key depends on the normalized specification, the vocabulary, the version of the compiler, the options and the
    resources. Annotations (titles, descriptions, examples) do not change the key. The order of properties changes it,
    because the output has the properties in this order. GrammarError is raised if the specification is malformed or too
    large.

    Args:
        specification: Specification (constraint of an output) as a typed model or as plain data.
        vocabulary_fingerprint: Fingerprint of the vocabulary (`Vocabulary.fingerprint`).
        options: Options for the format of the output.
        resources: URI -> JSON Schema to which `$ref` with this URI refers.
    """
    parsed = parse_specification(specification)
    content = canonical_bytes(parsed, Limits().max_specification_bytes, strict=options.on_unsupported == "reject")
    return content_key(content, vocabulary_fingerprint, options, resources)


def content_key(
    content: bytes,
    vocabulary_fingerprint: str,
    options: GrammarOptions,
    resources: Mapping[str, Any] = MappingProxyType({}),
) -> GrammarKey:
    """Return the grammar key (SHA-256 in hexadecimal) of a specification that is normalized already.

    Args:
        content: Normalized specification as JSON, from `canonical_bytes`.
        vocabulary_fingerprint: Fingerprint of the vocabulary (`Vocabulary.fingerprint`).
        options: Options for the format of the output.
        resources: URI -> JSON Schema to which `$ref` with this URI refers.
    """
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
    """Return a specification (constraint of an output), normalized, as compact JSON in ASCII.

    In JSON Schemas, annotations (titles, descriptions, ...) are dropped, and keywords are sorted. The names of
    properties and the values of `enum` keep their order. Annotations are kept if a `$ref` may lead into them, because
    the target of a reference is a schema.

    Args:
        specification: Specification to normalize; not changed.
        most: Maximum size of the JSON, in bytes.
        strict: True: a JSON Schema whose field `strict` is set is rejected if it has a misspelled keyword, or if it has
            unknown names but no keyword that restricts values. False: it is accepted.

    Raises:
        LimitExceededError: The JSON has more than `most` bytes, or is nested too deeply.
        InvalidSpecificationError: The specification has values that JSON cannot represent.
        GrammarError: The subclass UnsupportedFeatureError, if `strict` rejects a schema.
    """
    try:
        normalization = _Normalization(most, strict=strict)
        content = normalization.specification(specification)
        if normalization.refers_to_annotations:
            content = _Normalization(most, dropped=frozenset()).specification(specification)
        canonical = _ENCODER.encode(content).encode()
    except RecursionError:
        raise LimitExceededError(_TOO_DEEP) from None
    except GrammarError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidSpecificationError(f"the specification is not JSON: {error}") from None
    if len(canonical) > most:
        too_large = _too_large(most)
        raise too_large
    return canonical


def normalized(canonical: bytes) -> GrammarSpecification:
    """Return the typed model of a normalized specification. The compiler compiles this model.

    The grammar key is a hash of `canonical` and other data, so specifications with equal keys allow the same outputs.

    Args:
        canonical: Normalized specification as JSON, from `canonical_bytes`.
    """
    return SPECIFICATION.validate_python(json.loads(canonical))


_HOLD_LISTS = SUBSCHEMAS | SCHEMA_LISTS
# Annotations that are dropped: all but `$schema`, and `contentSchema`, which may have anchors inside.
_DROPPED = ANNOTATIONS - {"$schema", "contentSchema"}


class _Normalization:
    """Normalization of one specification of at most `most` bytes, without the keywords in `dropped`."""

    def __init__(self, most: int, dropped: frozenset[str] = _DROPPED, *, strict: bool = False) -> None:
        self._most = most
        self._strict = strict
        self._misspelt = False
        self._dropped = dropped
        self._bytes = 0
        self._references: list[str] = []

    @property
    def refers_to_annotations(self) -> bool:
        """True if the path of a reference has the name of an annotation, as a keyword or as the name of a property."""
        ways = (unquote(reference).partition("#")[2].split("/") for reference in self._references)
        return any(not self._dropped.isdisjoint(way) for way in ways)

    def specification(self, specification: BaseModel, at: str = "") -> dict[str, Any]:
        """Return the specification or tag at the JSON Pointer `at` as plain data."""
        match specification:
            case JsonSchemaSpecification():
                # The schema is read directly, because copying it takes as long as normalizing it.
                content = {"type": specification.type, "schema": self._schema(specification.json_schema)}
                if self._strict and specification.strict and (self._misspelt or _asserts_nothing(content["schema"])):
                    refuse_mistakes(specification.json_schema, at and f"{at}/schema")
                return content
            case StructuralTagSpecification() if specification.format is not None:
                return {"type": specification.type, "format": self._part(specification.format, f"{at}/format")}
            case AllOfSpecification() | StructuralTagSpecification() | Tag():
                return {name: self._part(value, f"{at}/{name}") for name, value in specification if name != "format"}
        data = specification.model_dump(by_alias=True)
        self._count(data)
        return data

    def _part(self, part: Any, at: str) -> Any:
        """Return the part at `at` of a specification as plain data. Formats omit fields that have their defaults."""
        if isinstance(part, FrozenModel):
            given = {
                name: getattr(part, name)
                for name, field in type(part).model_fields.items()
                if name == "type" or field.is_required() or getattr(part, name) != field.default
            }
            return {
                name: self._schema(value) if name == "json_schema" else self._part(value, f"{at}/{name}")
                for name, value in given.items()
            }
        if isinstance(part, BaseModel):
            return self.specification(part, at)
        if isinstance(part, list | tuple):
            self._add(len(part) + 1)
            return [self._part(one, f"{at}/{index}") for index, one in enumerate(part)]
        self._count(part)
        return part

    def _schema(self, schema: Any) -> Any:
        """Return a schema without annotations and with sorted keywords.

        Data that is not a schema is returned unchanged.
        """
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
            self._misspelt = self._misspelt or (keyword not in KEYWORDS and misspelt(keyword) is not None)
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
        """Count most of the bytes of a value as JSON. Raises LimitExceededError as soon as there are too many."""
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
    """Reject a schema that has a misspelled keyword, or that has unknown names but no keyword that restricts values.

    Args:
        schema: The JSON Schema.
        place: JSON Pointer of the schema in the specification, for the error.

    Raises:
        UnsupportedFeatureError: The schema is rejected. The pointer names the misspelled keyword or the schema.
    """
    if _asserts_nothing(schema):
        todo = "say what is valid with `type` and `properties`, without a wrapper (`on_unsupported: report` allows it)"
        raise UnsupportedFeatureError(f"schema in which no keyword asserts anything; {todo}", pointer=place)
    _refuse_misspelt(schema, place)


def _asserts_nothing(schema: Any) -> bool:
    """Return whether the schema has names that are not keywords, and no keyword that asserts anything."""
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
