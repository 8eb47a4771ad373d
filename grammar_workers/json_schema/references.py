"""References: where a subschema stands, and what `$ref` means there. Resolution itself is that of `referencing`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_specifications
import referencing.exceptions
import referencing.jsonschema

from grammar_workers.errors import InvalidSpecificationError, UnsupportedFeatureError
from grammar_workers.json_schema.keywords import DRAFTS, NEWEST, SCHEMA_LISTS, SCHEMA_MAPS, SUBSCHEMAS

_SPECIFICATIONS = {
    4: referencing.jsonschema.DRAFT4,
    6: referencing.jsonschema.DRAFT6,
    7: referencing.jsonschema.DRAFT7,
    2019: referencing.jsonschema.DRAFT201909,
    2020: referencing.jsonschema.DRAFT202012,
}
_ROOT = "urn:turnstile:document"


@dataclasses.dataclass(frozen=True)
class Scope:
    """Where a subschema stands: its draft, the JSON Pointer for messages, and how references resolve there."""

    contents: Any
    draft: int
    pointer: str
    resolver: Any

    def below(self, *path: str | int) -> Scope:
        """The place of a part of this subschema."""
        steps = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
        return dataclasses.replace(self, pointer=self.pointer + steps)

    def entered(self, schema: Mapping[str, Any]) -> Scope:
        """The scope within `schema`, which may declare a base URI or a draft of its own."""
        draft = _draft(schema, self.draft)
        identifier = schema.get("$id" if draft > 4 else "id")
        resolver = self.resolver
        if isinstance(identifier, str) and not (draft <= 7 and ("$ref" in schema or identifier.startswith("#"))):
            resolver = resolver.in_subresource(_SPECIFICATIONS[draft].create_resource(schema))
        return dataclasses.replace(self, draft=draft, resolver=resolver)

    @staticmethod
    def location(contents: Any) -> str:
        """A name for a subschema: its identity, for documents live as long as they are compiled."""
        return str(id(contents))


class References:
    """The documents at hand: the schema itself, `resources` by URI, and the meta-schemas. Nothing is downloaded."""

    def __init__(self, document: Any, resources: Mapping[str, Any]) -> None:
        draft = _draft(document, NEWEST) if isinstance(document, Mapping) else NEWEST
        registry = jsonschema_specifications.REGISTRY
        for uri, contents in {_ROOT: document, **resources}.items():
            specification = _SPECIFICATIONS[_draft(contents, draft) if isinstance(contents, Mapping) else draft]
            registry = registry.with_resource(uri, specification.create_resource(contents))
        self._document = document
        self._registry = registry
        self.root = Scope(document, draft, "", registry.resolver(_ROOT))

    def resolve(self, reference: Any, keyword: str, scope: Scope) -> tuple[Any, Scope]:
        """The subschema that a reference names and its scope; typed errors with the pointer of the reference."""
        place = scope.below(keyword).pointer
        if not isinstance(reference, str):
            raise InvalidSpecificationError(f"{keyword} must be a string", pointer=place)
        anchor = {"$dynamicRef": "$dynamicAnchor", "$recursiveRef": "$recursiveAnchor"}.get(keyword)
        if anchor is not None and sum(1 for schema in subschemas(self._document) if schema.get(anchor)) > 1:
            raise UnsupportedFeatureError(f"{keyword} whose target depends on the way there", pointer=place)
        try:
            resolved = scope.resolver.lookup(reference)
        except (referencing.exceptions.Unresolvable, ValueError) as error:
            if reference.startswith("#"):
                raise InvalidSpecificationError(f"{reference!r} does not exist", pointer=place) from error
            raise UnsupportedFeatureError(
                f"{reference!r} is not at hand; nothing is downloaded, pass it as a resource", pointer=place
            ) from error
        contents = resolved.contents
        pointer = reference[1:] if reference == "#" or reference.startswith("#/") else reference
        draft = _draft(contents, scope.draft) if isinstance(contents, Mapping) else scope.draft
        return contents, Scope(contents, draft, pointer, resolved.resolver)


def _draft(schema: Mapping[str, Any], inherited: int) -> int:
    uri = schema.get("$schema")
    return DRAFTS.get(uri.removesuffix("#"), inherited) if isinstance(uri, str) else inherited


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """`schema` and every schema inside it, references not followed."""
    pending = [schema]
    while pending:
        current = pending.pop()
        if not isinstance(current, Mapping):
            continue
        yield current
        for keyword, value in current.items():
            if keyword in SUBSCHEMAS or keyword in SCHEMA_LISTS:
                pending.extend(value if isinstance(value, list) else [value])
            elif keyword in SCHEMA_MAPS and isinstance(value, Mapping):
                pending.extend(value.values())
