"""Which keywords each draft of JSON Schema defines, and which of them only annotate."""

from __future__ import annotations

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
"""Meta-schema (without an empty fragment) -> the number that stands for the draft."""
NEWEST = 2020

ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"]
    + ["contentEncoding", "contentMediaType", "contentSchema"]
)
"""Keywords that never assert anything: they do not change the key."""

SUBSCHEMAS = frozenset(
    ["additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames"]
    + ["unevaluatedItems", "unevaluatedProperties"]
)
"""Keywords whose value is a schema (`items` may also be an array of them)."""
SCHEMA_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
"""Keywords whose value is an array of schemas."""
SCHEMA_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"])
"""Keywords whose value maps names to schemas."""

_ALWAYS = frozenset(
    ["type", "enum", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength"]
    + ["maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
    + ["allOf", "anyOf", "oneOf", "not", "patternProperties", "minProperties", "maxProperties", "uniqueItems"]
    + ["dependencies", "$ref", "$defs", "definitions", "id", "$id"]
)
_SINCE = (
    dict.fromkeys(["const", "contains", "propertyNames"], 6)
    | dict.fromkeys(["if", "then", "else"], 7)
    | dict.fromkeys(["dependentRequired", "dependentSchemas", "minContains", "maxContains", "$anchor"], 2019)
    | dict.fromkeys(["unevaluatedProperties", "unevaluatedItems", "$vocabulary"], 2019)
    | dict.fromkeys(["prefixItems", "$dynamicRef", "$dynamicAnchor"], 2020)
)
_UNTIL = {"additionalItems": 2019}
_ONLY = dict.fromkeys(["$recursiveRef", "$recursiveAnchor"], 2019)


def is_known(keyword: str, draft: int) -> bool:
    """Whether `draft` defines the keyword; all others are unknown to it, so they are annotations."""
    if keyword in _ALWAYS or keyword in ANNOTATIONS:
        return True
    if keyword in _SINCE:
        return draft >= _SINCE[keyword]
    return draft <= _UNTIL.get(keyword, 0) or draft == _ONLY.get(keyword)
