"""References: the schemas that `$ref` names, and the scopes (dialect, base URI and path) of subschemas.

The package `referencing` looks up URIs. A `$dynamicRef` names an anchor. Its target is in the outermost schema resource
with this anchor on the path from the root. So a scope contains this path, reduced to resources with dynamic anchors. A
subschema that is reached on two paths has two scopes, and each scope has only one target. `$recursiveRef` is similar.
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
from grammar_workers.languages.json_schema.read.keywords import NEWEST, STANDARD, Dialect, dialect_of, schemas_in
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
# Stands for the nameless anchor that `$recursiveAnchor` sets at the root of a resource.
_RECURSIVE = "$recursiveAnchor"


@dataclasses.dataclass(frozen=True, eq=False)
class Resource:
    """Schema resource: a schema with its own URI. It is the document, a further schema, or a subschema with `$id`.

    Attributes:
        contents: The schema.
        resolver: The resolver of the package `referencing` for references in the schema.
    """

    contents: Any
    resolver: Any


# Path: dynamic anchor -> the outermost resource with this anchor that references have passed, sorted by anchor.
Way: TypeAlias = tuple[tuple[str, Resource], ...]


# A plain tuple because one is made for every subschema.
class Scope(NamedTuple):
    """Context of a subschema, which determines how its keywords and references are read.

    Attributes:
        resource: Contents of the schema resource (schema with its own URI) that contains the subschema.
        dialect: Draft and vocabularies of the subschema.
        pointer: The subschema's JSON Pointer, for messages.
        resolver: The resolver of the package `referencing` for `resource`.
        way: Pairs (dynamic anchor, outermost resource with this anchor) on the path from the root to the subschema,
            sorted by anchor. They determine the targets of `$dynamicRef` and `$recursiveRef`.
    """

    resource: Any
    dialect: Dialect
    pointer: str
    resolver: Any
    way: Way = ()

    @property
    def draft(self) -> int:
        """Number of the draft of JSON Schema that applies: 4, 6, 7, 2019 or 2020."""
        return self.dialect.draft

    def below(self, keyword: str, name: str | int | None = None) -> Scope:
        """Return the scope of the value of `keyword`, or of one part of this value.

        Args:
            keyword: Name of the keyword.
            name: Property name or index of the part in the value; None for the whole value.
        """
        pointer = f"{self.pointer}/{keyword}"
        if name is not None:
            pointer += validation.pointer((name,))
        return Scope(self.resource, self.dialect, pointer, self.resolver, self.way)

    def wrong(self, keyword: str, expected: str) -> InvalidSpecificationError:
        """Return (do not raise) an error for a keyword whose value is wrong. The error has the keyword's JSON Pointer.

        Args:
            keyword: Name of the keyword.
            expected: Description of the valid values, as the end of the sentence "`keyword` must be ...".
        """
        return InvalidSpecificationError(f"{keyword} must be {expected}", pointer=self.below(keyword).pointer)

    def location(self, contents: Any) -> str:
        """Return a text that identifies a subschema together with its path of dynamic anchors.

        The text contains the `id` of Python objects. They are stable because the documents live as long as the
        compilation.

        Args:
            contents: The subschema in this scope.
        """
        return repr((id(contents), *((anchor, id(resource.contents)) for anchor, resource in self.way)))


def _resolver(documents: Mapping[str, Any], drafts: Mapping[str, int]) -> Any:
    """Return the resolver of the document."""
    registry = jsonschema_specifications.REGISTRY
    for uri, contents in documents.items():
        draft = drafts[uri]
        resource = _SPECIFICATIONS[draft].create_resource(contents)
        registry = registry.with_resource(uri, resource)
        # Without an entry for its own identifier, a document is searched whenever the identifier is looked up.
        identifier = contents.get(_identifier_of(draft)) if isinstance(contents, dict) else None
        if isinstance(identifier, str):
            with contextlib.suppress(ValueError):
                registry = registry.with_resource(urljoin(uri, identifier), resource)
    return registry.resolver(_ROOT)


class References:
    """Documents to which a schema can refer: the schema itself, further schemas and the meta-schemas.

    Nothing is downloaded. A reference such as `/definitions/x` that cannot be resolved is read as `#/definitions/x`,
    with a warning in `notes`.

    Args:
        document: The schema.
        resources: URI -> further schema.

    Attributes:
        notes: Warnings about references.
        root: Scope of the document.

    Raises:
        GrammarError: `$schema` or `$id` at the root is not supported or malformed.
    """

    def __init__(self, document: Any, resources: Mapping[str, Any]) -> None:
        self._resources = resources
        self._anchors: dict[int, dict[str, Any]] = {}
        # Dialects of the resources that have been entered, by the identity of their contents.
        self._dialects: dict[int, Dialect] = {}
        # The identities in keys stay valid because the values keep the resolvers alive.
        self._roots: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._resolved: dict[tuple[str, str, int, int, Way], tuple[Scope, tuple[Any, Scope]]] = {}
        self.notes: list[str] = []
        dialect = self.dialect(document, STANDARD[NEWEST], "")
        documents = {_ROOT: document, **resources}
        drafts = {uri: self.dialect(contents, dialect, "").draft for uri, contents in documents.items()}
        self._dialects[id(document)] = dialect
        root = Scope(None, dialect, "", _resolver(documents, drafts))
        if isinstance(document, dict):
            root = self.entered(root, document)
        way = self.passed((), Resource(document, root.resolver))
        self.root = root._replace(resource=document, way=way)

    def dialect(self, schema: Any, inherited: Dialect, pointer: str) -> Dialect:
        """Return the dialect that `$schema` of a schema names.

        Args:
            schema: The schema. A value that is not an object has no `$schema`.
            inherited: Dialect to return if there is no `$schema`, or if its meta-schema is not available or names
                itself as its own `$schema`.
            pointer: JSON Pointer of the schema, for errors.

        Raises:
            UnsupportedFeatureError: The schema is of draft 3, or the meta-schema requires an unknown vocabulary.
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
        # A meta-schema that names itself extends the draft of the schema around it.
        base = inherited if meta_schema.get("$schema") == uri else self.dialect(meta_schema, inherited, pointer)
        vocabularies = meta_schema.get("$vocabulary")
        return base.limited(vocabularies, here) if isinstance(vocabularies, dict) else base

    def lacks_dialect(self, schema: Mapping[str, Any]) -> bool:
        """Return whether `$schema` names a meta-schema that is not available. False if the schema has no `$schema`."""
        uri = schema.get("$schema")
        return isinstance(uri, str) and dialect_of(uri) is None and self._meta_schema(uri) is None

    def _meta_schema(self, uri: str) -> Any:
        return self._resources.get(uri.removesuffix("#"), self._resources.get(uri))

    def entered(self, scope: Scope, schema: Mapping[str, Any]) -> Scope:
        """Return the scope of the keywords inside a schema.

        The schema may declare a dialect (`$schema`) and a base URI (`$id`), which change the scope.

        Args:
            scope: Scope of the schema itself. It is returned if the schema declares nothing.
            schema: The schema.

        Raises:
            InvalidSpecificationError: The declared base URI is not a URI.
        """
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
        """Return the subschema that a reference names, and the scope of this subschema.

        InvalidSpecificationError is raised if the reference is malformed or names nothing in the document.
        UnsupportedFeatureError is raised if it names a document that is not available. Errors have the JSON Pointer of
        the reference.

        Args:
            reference: The value of the keyword.
            keyword: `$ref`, `$dynamicRef` or `$recursiveRef`.
            scope: Scope of the schema that has the keyword.

        Returns:
            Pair of the subschema, and its scope: dialect, base URI and JSON Pointer.
        """
        origin = scope.below(keyword).pointer
        if not isinstance(reference, str):
            raise scope.wrong(keyword, "a string")
        # The identities in keys stay valid because the stored scope keeps the objects alive.
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
        # `referencing` does not check that a schema is an object or a boolean.
        except (referencing.exceptions.Unresolvable, ValueError, TypeError, AttributeError) as error:
            if reference.startswith("/"):
                with contextlib.suppress(InvalidSpecificationError):
                    inside = self._resolve(f"#{reference}", keyword, scope, origin)
                    self.notes.append(f"{origin}: {reference!r} is read as '#{reference}'")
                    return inside
            if reference.startswith("#"):
                around = " in the schema resource around it, which has an $id"
                within = "" if scope.resource is self.root.resource else around
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
            # One resolver for each resource, so that the cache of resolved references applies.
            resource = Resource(scope.resource, scope.resolver)
        dialect = self.dialect(resource.contents, self._dialects.get(id(resource.contents), scope.dialect), pointer)
        way = self.passed(scope.way, resource)
        return contents, Scope(resource.contents, dialect, pointer, resource.resolver, way)

    def _root(self, resolver: Any, uri: str) -> Any:
        """Return the resource of `uri`, with its contents and a resolver.

        `uri` has no fragment; "" is the resource of `resolver` itself.
        """
        known = self._roots.get((id(resolver), uri))
        if known is None:
            known = self._roots[id(resolver), uri] = (resolver, resolver.lookup(uri or "#"))
        return known[1]

    def passed(self, way: Way, resource: Resource) -> Way:
        """Extend a path of dynamic anchors by the anchors of an entered resource that are not in the path yet.

        Args:
            way: The path before: pairs (anchor, outermost resource with this anchor), sorted by anchor; not changed.
            resource: The resource that a reference or an `$id` enters.

        Returns:
            The new path. `way` itself if the resource has no new anchors.
        """
        outermost = dict(way)
        anchors = self._dynamic_anchors(resource.contents).keys()
        if anchors <= outermost.keys():
            return way
        return tuple(sorted({**dict.fromkeys(anchors, resource), **outermost}.items()))

    def _dynamic_anchors(self, resource: Any) -> dict[str, Any]:
        """Return the dynamic anchors of one schema resource: name -> schema."""
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
    """Return the keyword that names a schema resource."""
    return "$id" if draft > 4 else "id"


def _near(reference: str, resource: Any) -> str | None:
    """Return an existing reference that is similar to one whose last name does not exist; None if there is none."""
    around, _, name = reference.rpartition("/")
    for step in around.split("/")[1:]:
        resource = resource.get(step) if isinstance(resource, dict) else None
    near = NearNames(resource).find(name) if isinstance(resource, dict) else None
    return None if near is None else f"{around}/{near}"


def _root_of(resolver: Any) -> Any:
    """Return the schema resource of a resolver; None for a part that only a JSON Pointer reaches."""
    try:
        return resolver.lookup("#").contents
    except (referencing.exceptions.Unresolvable, TypeError, AttributeError):
        return None


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield `schema` and all schemas inside it, except resources of their own; do not follow references."""
    pending = [schema]
    while pending:
        current = pending.pop()
        if not isinstance(current, dict):
            continue
        if current is not schema and isinstance(current.get("$id"), str):
            continue
        yield current
        pending += [part for keyword, value in current.items() for _, part in schemas_in(keyword, value)]
