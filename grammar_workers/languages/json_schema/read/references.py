"""References: the scope in which a subschema stands, and what `$ref` means there.

Looking things up by URI is `referencing`'s work. A `$dynamicRef` (and `$recursiveRef`) means the outermost schema
resource on the way there that has the anchor. So the way, as far as it has such anchors, is part of a scope: one
subschema reached in two ways has two scopes, and in each of them the target is known statically.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urljoin

import jsonschema_specifications
import referencing.exceptions
import referencing.jsonschema

from grammar_workers import validation
from grammar_workers.errors import InvalidSpecificationError, UnsupportedFeatureError
from grammar_workers.languages.json_schema.read.keywords import NEWEST, Dialect, dialect_of, schemas_in, standard
from grammar_workers.near_names import NearNames

_SPECIFICATIONS = {
    4: referencing.jsonschema.DRAFT4,
    6: referencing.jsonschema.DRAFT6,
    7: referencing.jsonschema.DRAFT7,
    2019: referencing.jsonschema.DRAFT201909,
    2020: referencing.jsonschema.DRAFT202012,
}
_DECLARING = ("$schema", "$id", "id")
_ROOT = "urn:turnstile:document"
_RECURSIVE = "$recursiveAnchor"
"""Stands for the anchor that `$recursiveAnchor` sets at the root of a resource: it has no name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Resource:
    """A schema resource: the document, one of the resources at hand, or a part of them with an `$id` of its own."""

    contents: Any
    resolver: Any


Way: TypeAlias = tuple[tuple[str, Resource], ...]
"""Dynamic anchor -> the outermost resource passed so far that has it, sorted by name."""


# A plain tuple because one is made for every subschema.
class Scope(NamedTuple):
    """The surroundings of a subschema: its dialect, its JSON Pointer for messages, and how references resolve there.

    `resource` is the schema resource that `resolver` resolves against; of the resources passed so far no more than
    `way` matters to anything behind it.
    """

    resource: Any
    dialect: Dialect
    pointer: str
    resolver: Any
    way: Way = ()

    @property
    def draft(self) -> int:
        return self.dialect.draft

    def below(self, keyword: str, name: str | int | None = None) -> Scope:
        """The scope of what a keyword holds, or of the part of it that has this name or index."""
        pointer = f"{self.pointer}/{keyword}"
        if name is not None:
            pointer += validation.pointer((name,))
        return Scope(self.resource, self.dialect, pointer, self.resolver, self.way)

    def wrong(self, keyword: str, expected: str) -> InvalidSpecificationError:
        """The error about a keyword whose value is not what it must be."""
        return InvalidSpecificationError(f"{keyword} must be {expected}", pointer=self.below(keyword).pointer)

    def location(self, contents: Any) -> str:
        """A name for a subschema in this scope: identities, for documents live as long as they are compiled."""
        return repr((id(contents), *((anchor, id(resource.contents)) for anchor, resource in self.way)))


def _resolver(documents: Mapping[str, Any], drafts: Mapping[str, int]) -> Any:
    """That of the document."""
    registry = jsonschema_specifications.REGISTRY
    for uri, contents in documents.items():
        draft = drafts[uri]
        resource = _SPECIFICATIONS[draft].create_resource(contents)
        registry = registry.with_resource(uri, resource)
        # A document that is not known by its own name is crawled through whenever that is looked up.
        identifier = contents.get(_identifier_of(draft)) if isinstance(contents, dict) else None
        if isinstance(identifier, str):
            with contextlib.suppress(ValueError):
                registry = registry.with_resource(urljoin(uri, identifier), resource)
    return registry.resolver(_ROOT)


class References:
    """The documents at hand: the schema itself, `resources` by URI, and the meta-schemas. Nothing is downloaded.

    A path that leads nowhere but into the schema resource around it is read as a fragment, which `notes` says.
    """

    def __init__(self, document: Any, resources: Mapping[str, Any]) -> None:
        self._resources = resources
        self._anchors: dict[int, dict[str, Any]] = {}
        # Of the resources that have been entered, by the identity of their contents.
        self._dialects: dict[int, Dialect] = {}
        # Numbers stand for resolvers that the values keep alive.
        self._roots: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._resolved: dict[tuple[str, str, int, int, Way], tuple[Scope, tuple[Any, Scope]]] = {}
        self.notes: list[str] = []
        dialect = self.dialect(document, standard(NEWEST), "")
        documents = {_ROOT: document, **resources}
        drafts = {uri: self.dialect(contents, dialect, "").draft for uri, contents in documents.items()}
        self._dialects[id(document)] = dialect
        root = Scope(None, dialect, "", _resolver(documents, drafts))
        if isinstance(document, dict):
            root = self.entered(root, document)
        way = self.passed((), Resource(document, root.resolver))
        self.root = root._replace(resource=document, way=way)

    def dialect(self, schema: Any, inherited: Dialect, pointer: str) -> Dialect:
        """The dialect that `$schema` names; the inherited one without it, or where that is not at hand.

        Raises UnsupportedFeatureError for draft 3 and for vocabularies that must be understood and are not.
        """
        uri = schema.get("$schema") if isinstance(schema, dict) else None
        if not isinstance(uri, str):
            return inherited
        known = dialect_of(uri)
        if known is not None:
            return known
        here = f"{pointer}/$schema"
        meta_schema = self._meta_schema(uri)
        if not isinstance(meta_schema, dict):
            if "draft-03" in uri:
                raise UnsupportedFeatureError("draft 3 is not supported (drafts 4 to 2020-12 are)", pointer=here)
            return inherited
        if meta_schema.get("$schema") == uri:
            return inherited
        base = self.dialect(meta_schema, inherited, pointer)
        vocabularies = meta_schema.get("$vocabulary")
        return base.limited(vocabularies, here) if isinstance(vocabularies, dict) else base

    def lacks_dialect(self, schema: Mapping[str, Any]) -> bool:
        """True if a schema names a meta-schema that is not at hand."""
        if "$schema" not in schema:
            return False
        uri = schema["$schema"]
        return isinstance(uri, str) and dialect_of(uri) is None and self._meta_schema(uri) is None

    def _meta_schema(self, uri: str) -> Any:
        return self._resources.get(uri.removesuffix("#"), self._resources.get(uri))

    def entered(self, scope: Scope, schema: Mapping[str, Any]) -> Scope:
        """The scope within `schema`, which stands at `scope` and may declare a base URI or a dialect of its own."""
        if schema.keys().isdisjoint(_DECLARING):
            return scope
        dialect = self.dialect(schema, scope.dialect, scope.pointer)
        # In a newer document, draft 4's `id` makes no resource of a part, whatever `$schema` the part has.
        keyword = _identifier_of(max(dialect.draft, scope.draft))
        if dialect is not scope.dialect:
            scope = scope._replace(dialect=dialect)
        identifier = schema.get(keyword)
        if schema is scope.resource or not isinstance(identifier, str):
            return scope
        if dialect.draft <= 7 and ("$ref" in schema or identifier.startswith("#")):
            return scope
        try:
            resolver = scope.resolver.in_subresource(_SPECIFICATIONS[dialect.draft].create_resource(schema))
        except ValueError as error:
            origin = scope.below(keyword).pointer
            raise InvalidSpecificationError(f"{identifier!r} is not a URI: {error}", pointer=origin) from error
        self._dialects[id(schema)] = dialect
        way = self.passed(scope.way, Resource(schema, resolver))
        return scope._replace(resource=schema, resolver=resolver, way=way)

    def resolve(self, reference: Any, keyword: str, scope: Scope) -> tuple[Any, Scope]:
        """The subschema that a reference names and its scope; typed errors with the pointer of the reference."""
        origin = scope.below(keyword).pointer
        if not isinstance(reference, str):
            raise scope.wrong(keyword, "a string")
        # Numbers stand for what the scope beside them keeps alive.
        identity = (reference, keyword, id(scope.resolver), id(scope.dialect), scope.way)
        if identity not in self._resolved:
            self._resolved[identity] = (scope, self._resolve(reference, keyword, scope, origin))
        return self._resolved[identity][1]

    def _resolve(self, reference: str, keyword: str, scope: Scope, origin: str) -> tuple[Any, Scope]:
        uri, _, fragment = reference.partition("#")
        anchor = _RECURSIVE if keyword == "$recursiveRef" else fragment
        try:
            root = self._root(scope.resolver, uri)
            found = self._dynamic_anchors(root.contents).get(anchor)
            if found is None:
                resolved = scope.resolver.lookup(reference)
                contents, resolver = resolved.contents, resolved.resolver
            else:
                contents, resolver = found, root.resolver
        # `referencing` takes what stands in the place of a schema for one.
        except (referencing.exceptions.Unresolvable, ValueError, TypeError, AttributeError) as error:
            if reference.startswith("/"):
                with contextlib.suppress(InvalidSpecificationError):
                    inside = self._resolve(f"#{reference}", keyword, scope, origin)
                    self.notes.append(f"{origin}: {reference!r} is read as '#{reference}'")
                    return inside
            if reference.startswith("#"):
                within = (
                    ""
                    if scope.resource is self.root.resource
                    else " in the schema resource around it, which has an $id"
                )
                near = _near(reference, scope.resource)
                hint = f"is {near!r} meant?" if near else "define it under `$defs`, or by an anchor"
                message = f"{reference!r} does not exist{within}; {hint}"
                raise InvalidSpecificationError(message, pointer=origin) from error
            raise UnsupportedFeatureError(
                f"{reference!r} is not at hand, and nothing is downloaded: copy it into `$defs`, and refer to it there",
                pointer=origin,
            ) from error
        if found is not None and keyword != "$ref":
            outermost = dict(scope.way).get(anchor)
            if outermost is not None:
                contents, resolver = self._dynamic_anchors(outermost.contents)[anchor], outermost.resolver
        pointer = reference[1:] if reference == "#" or reference.startswith("#/") else reference
        resource = Resource(_root_of(resolver), resolver)
        if not uri and resource.contents is scope.resource:
            # One resolver within one resource, so that what it resolves is known the next time.
            resource = Resource(scope.resource, scope.resolver)
        dialect = self.dialect(resource.contents, self._dialects.get(id(resource.contents), scope.dialect), pointer)
        way = self.passed(scope.way, resource)
        return contents, Scope(resource.contents, dialect, pointer, resource.resolver, way)

    def _root(self, resolver: Any, uri: str) -> Any:
        """The resource of `uri` (without a fragment; "": the resolver's own): contents and a resolver."""
        known = self._roots.get((id(resolver), uri))
        if known is None:
            known = self._roots[id(resolver), uri] = (resolver, resolver.lookup(uri or "#"))
        return known[1]

    def passed(self, way: Way, resource: Resource) -> Way:
        """`way` and the anchors of the resource that is entered now, as far as no outer one has them."""
        outermost = dict(way)
        anchors = self._dynamic_anchors(resource.contents).keys()
        if anchors <= outermost.keys():
            return way
        return tuple(sorted({**dict.fromkeys(anchors, resource), **outermost}.items()))

    def _dynamic_anchors(self, resource: Any) -> dict[str, Any]:
        """Name -> schema, for the dynamic anchors of one schema resource."""
        found = self._anchors.get(id(resource))
        if found is None:
            found = self._anchors[id(resource)] = {}
            for schema in _subschemas(resource):
                if isinstance(schema.get("$dynamicAnchor"), str):
                    found[schema["$dynamicAnchor"]] = schema
            if isinstance(resource, dict) and resource.get("$recursiveAnchor") is True:
                found[_RECURSIVE] = resource
        return found


def _identifier_of(draft: int) -> str:
    """The keyword that names a schema resource."""
    return "$id" if draft > 4 else "id"


def _near(reference: str, resource: Any) -> str | None:
    """The reference that may be meant by one whose last name nothing has."""
    around, _, name = reference.rpartition("/")
    for step in around.split("/")[1:]:
        resource = resource.get(step) if isinstance(resource, dict) else None
    near = NearNames(resource).find(name) if isinstance(resource, dict) else None
    return None if near is None else f"{around}/{near}"


def _root_of(resolver: Any) -> Any:
    """The schema resource that a resolver stands in; None for a part that only a JSON Pointer leads to."""
    try:
        return resolver.lookup("#").contents
    except (referencing.exceptions.Unresolvable, TypeError, AttributeError):
        return None


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """`schema` and every schema inside it, but resources of their own; references are not followed."""
    pending = [schema]
    while pending:
        current = pending.pop()
        if not isinstance(current, dict):
            continue
        if current is not schema and isinstance(current.get("$id"), str):
            continue
        yield current
        pending += [part for keyword, value in current.items() for _, part in schemas_in(keyword, value)]
