"""Grammar keys: the content hash under which an automaton is shared by the whole cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError
from grammar_workers.json_schema.keywords import ANNOTATIONS, SCHEMA_LISTS, SCHEMA_MAPS, SUBSCHEMAS
from grammar_workers.options import GrammarOptions
from grammar_workers.specification import SPECIFICATION, GrammarSpecification, JsonSchemaSpecification
from grammar_workers.types import GrammarKey

COMPILER_VERSION = 10
"""Part of every key: raise it whenever the same specification compiles to another language or table layout."""


def parse_specification(specification: GrammarSpecification | Mapping[str, Any]) -> GrammarSpecification:
    """The typed specification; InvalidSpecificationError names what is missing, unknown or of the wrong type."""
    if isinstance(specification, BaseModel):
        return specification
    try:
        return SPECIFICATION.validate_python(specification)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidSpecificationError(
            f"malformed specification: {first['msg']}", pointer=_pointer(first["loc"])
        ) from None
    except RecursionError:
        raise LimitExceededError("the specification is nested too deeply (limit max_nesting)") from None


def grammar_key(
    specification: GrammarSpecification | Mapping[str, Any],
    vocabulary_fingerprint: str,
    options: GrammarOptions = GrammarOptions(),  # noqa: B008 - immutable
    resources: Mapping[str, Any] = MappingProxyType({}),
) -> GrammarKey:
    """SHA-256 (hex) of the normalised specification, the vocabulary, the compiler's version, options and resources.

    Annotations (titles, descriptions, examples) do not change the key; the order of properties, which is part of the
    language, does. Raises GrammarError for a malformed specification.
    """
    return content_key(canonical_bytes(parse_specification(specification)), vocabulary_fingerprint, options, resources)


def content_key(
    content: bytes, vocabulary_fingerprint: str, options: GrammarOptions, resources: Mapping[str, Any]
) -> GrammarKey:
    """The key of a specification whose `canonical_bytes` are `content`."""
    digest = hashlib.sha256()
    for part in (
        content,
        vocabulary_fingerprint.encode(),
        str(COMPILER_VERSION).encode(),
        options.model_dump_json().encode(),
        json.dumps(dict(resources)).encode(),
    ):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def canonical_bytes(specification: GrammarSpecification) -> bytes:
    """The normalised specification as JSON: no annotations, keywords sorted, names and values in the given order."""
    try:
        data = _plain_data(specification)
        _normalize_schemas(data)
        return json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError:
        raise LimitExceededError("the specification is nested too deeply (limit max_nesting)") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, GrammarError):
            raise
        raise InvalidSpecificationError(f"the specification is not JSON: {error}") from None


def _pointer(location: tuple[int | str, ...]) -> str:
    """The JSON Pointer of a validation error, without the discriminators that pydantic chose the models by."""
    parts = [
        part
        for index, part in enumerate(location)
        if index > 0
        and location[index - 1] != "content"
        and not (index > 1 and isinstance(location[index - 1], int) and location[index - 2] == "specifications")
    ]
    return "".join(f"/{part}" for part in parts)


def _plain_data(specification: GrammarSpecification) -> dict[str, Any]:
    if isinstance(specification, JsonSchemaSpecification):
        # Schemas may be large, and normalising makes a copy anyway.
        return {"type": specification.type, "schema": specification.json_schema}
    return specification.model_dump(by_alias=True)


def _normalize_schemas(data: dict[str, Any]) -> None:
    """Normalise the schema of a specification, or those of the specifications inside it, in place."""
    if data["type"] == "json_schema":
        data["schema"] = _normalized(data["schema"])
    for inner in data.get("specifications", ()):
        _normalize_schemas(inner)
    for tag in data.get("tags", ()):
        _normalize_schemas(tag["content"])


def _normalized(schema: Any) -> Any:
    """A schema without annotations and with its keywords sorted; what is not a schema stays as it is."""
    if not isinstance(schema, dict):
        return schema
    result = {}
    for keyword in sorted(schema):
        value = schema[keyword]
        if keyword in ANNOTATIONS and keyword != "$schema":
            continue
        if keyword in SUBSCHEMAS and isinstance(value, list):
            value = [_normalized(part) for part in value]
        elif keyword in SUBSCHEMAS:
            value = _normalized(value)
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            value = [_normalized(part) for part in value]
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            # A list here is that of `dependencies`: names, not schemas.
            value = {name: _normalized(part) for name, part in value.items()}
        result[keyword] = value
    return result
